"""Launch, train, evaluate and tabulate PyTorch runs on Slurm clusters and on one machine."""

import importlib
from typing import Any

__version__ = "0.1.0"
__all__ = ["log"]


def __getattr__(name: str) -> Any:
    """`trainpkg.log`, for training scripts; by name, since start-up counts on every node and tables know only files."""
    if name != "log":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module("trainpkg.script").log
