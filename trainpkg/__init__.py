"""Launch, train, evaluate and tabulate PyTorch runs on Slurm clusters and on one machine."""

__version__ = "0.1.0"
