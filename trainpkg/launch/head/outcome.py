"""How an attempt ended, and what that says about another one."""

from __future__ import annotations

from dataclasses import dataclass

from trainpkg.launch.head.blame.failure import Failure

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


def why_no_restart(found: Failure, left: int, most: int, whole: bool, repeated: bool, stopping: bool) -> str | None:
    """None to start all ranks again in place after a failure, else what to add to its sentence.

    `left` of `most` restarts; `whole`: all nodes are there; `repeated`: it is the failure before it again.
    """
    if found.kind == "user_error" or (left <= 0 and most == 0):
        return ""
    if left <= 0:
        return f" (no restart left of {most})"
    if not whole:
        return " (no restart in place: a node is gone)"
    if stopping:
        return " (while stopping)"
    if repeated:
        return " (no restart: it failed the same way at the same step before)"
    return None
