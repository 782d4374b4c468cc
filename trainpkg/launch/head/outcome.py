"""How an attempt ended, and what that says about another one."""

from __future__ import annotations

from dataclasses import dataclass

from trainpkg.launch.head.failure import Failure

AGAIN, DO_NOT_RUN_AGAIN, INTERRUPTED = 75, 78, 130


@dataclass
class Outcome:
    """How the attempt ended. `verdict`: finished | again | stuck | failed | interrupted."""

    verdict: str
    status: int
    failure: Failure | None = None
    sentence: str = ""
    step_first: int | None = None
    step_last: int | None = None
    generations: int = 0
    step_saved: int | None = None
    repeated: bool = False  # the last failure was the one before it again

    @property
    def run_again(self) -> bool:
        """Whether another attempt may end otherwise."""
        found = self.failure
        own_fault = found is not None and (found.kind == "user_error" or (self.repeated and not found.from_outside))
        return self.verdict != "stuck" and not own_fault
