"""Launch, train, evaluate and tabulate PyTorch runs on Slurm clusters and on one machine."""

from typing import Any

__version__ = "0.1.0"
__all__ = ["log"]


def __getattr__(name: str) -> Any:
    """`trainpkg.log`, which training scripts call; imported by those alone, since start-up counts on every node."""
    if name != "log":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from trainpkg.script import log

    return log
