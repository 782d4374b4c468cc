"""One save on its way to the disk, and what the file system said where it failed."""

from __future__ import annotations

import dataclasses
import errno
import shutil
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.api import CheckpointException

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@dataclasses.dataclass
class Flight:
    """A save that was begun; `end` comes when it is published on all ranks, or failed on all. Times are monotonic."""

    step: int
    waiting: Path
    beside: bool  # training goes on meanwhile
    end: Future[Any] = dataclasses.field(default_factory=Future)
    began_s: float = dataclasses.field(default_factory=time.monotonic)
    held_up_s: float = 0.0  # for how long training stood still
    ended_s: float = 0.0

    def off(self, end: Future[Any]) -> None:
        """Training may go on, if it does."""
        self.end, self.held_up_s = end, time.monotonic() - self.began_s
        end.add_done_callback(lambda _: setattr(self, "ended_s", time.monotonic()))

    @property
    def over(self) -> bool:
        return self.end.done()

    @property
    def failed(self) -> bool:
        """Whether it is known to have failed."""
        return self.over and self.end.exception() is not None


def file_problem(error: BaseException, folder: Path) -> str | None:
    """A sentence for a full disk or another refusal of the file system; None where the error is something else."""
    causes = [error]
    if isinstance(error, CheckpointException):
        causes = [failure[0] for failure in error.failures.values()]
    for cause in causes:
        number = cause.errno if isinstance(cause, OSError) else None
        # torch's zip writer turns what the file said into a RuntimeError without the number
        if number in _FULL or "file write failed" in str(cause) or "unexpected pos" in str(cause):
            usage = shutil.disk_usage(folder)
            return (
                f"no space left ({usage.free:,} of {usage.total:,} bytes free there, or a quota or file-size limit "
                "reached); earlier checkpoints are intact; free space or set results_dir to another file system, then "
                "start again"
            )
        if number is not None:
            return f"{cause}; earlier checkpoints are intact"
    return None
