"""What Slurm says, read and checked: its notations, and the allocation that its environment tells."""
