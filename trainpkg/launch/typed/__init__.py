"""Nodes without Slurm: one `node` command typed per machine; node 0's holds the head, the others call it."""
