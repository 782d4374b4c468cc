"""Ranks that someone else's launcher starts: torchrun, mpirun, srun or a script of the user's.

command   the subcommand `train`: which rank this is, by whose word, and what it needs around it; no torch yet
places    what the ranks know of themselves, held against each other: pure
exchange  the ranks' meeting at the store, before any process group
rank      one rank's life: rank 0 keeps the run directory, all of them train
"""
