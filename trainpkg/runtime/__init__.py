"""What runs inside a rank: process group, parallelism, optimisation, checkpoints, signals, metrics."""
