"""How the ranks of a call have ended, and which of several ends is the cause."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trainpkg import last_words
from trainpkg.launch.head.blame.sentences import signal_name


class RankFailedError(RuntimeError):
    """The first rank that failed: by `signal`, or with `exit_code` and, where it raised, its `traceback`."""

    def __init__(self, message: str, rank: int, exit_code: int | None, signal: int | None, traceback: str) -> None:
        super().__init__(message)
        self.rank, self.exit_code, self.signal, self.traceback = rank, exit_code, signal, traceback


@dataclass
class Ended:
    """How one rank ended. `error` is what it reported before."""

    rank: int
    pid: int
    exit_code: int | None
    signal: int | None
    error: dict[str, Any]

    @property
    def failed(self) -> bool:
        return self.exit_code != 0

    @property
    def likelihood(self) -> tuple[int, float]:
        """Sorts the likeliest cause first: a death by signal, an end without a word, an exception of one's own."""
        if not self.error:
            return (0 if self.signal is not None else 1), 0.0
        return (3 if last_words.lost_peer(self.error["text"]) else 2), self.error["time_s"]

    def failure(self) -> RankFailedError:
        who, trace = f"rank {self.rank} (process {self.pid})", self.error.get("traceback", "")
        if self.error:
            text = f"{who} raised {self.error['type']}: {self.error['text']}\n\nIn rank {self.rank}: {trace}"
        elif self.signal is not None:
            text = f"{who} was killed by {signal_name(self.signal)}"
        else:
            text = f"{who} ended with status {self.exit_code}"
        return RankFailedError(text, self.rank, self.exit_code, self.signal, trace)
