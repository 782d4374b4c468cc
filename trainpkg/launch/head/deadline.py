"""When a job with a time limit begins to stop, and when it ends its ranks itself rather than be killed with them.

Pure: times come in, no clock is read here. Slurm's warning signal is no part of it: that may come early, or never.
"""

from __future__ import annotations

from dataclasses import dataclass

END_MARGIN_S = 5.0  # before the limit: enough to end what is left, to write the verdict and to ask for a requeue


@dataclass
class Deadline:
    """Unix seconds. `lead_s` before the end the ranks are asked to save, and earlier where saving takes longer."""

    end_s: float | None
    lead_s: float
    save_s: float = 0.0  # the longest save so far
    step_s: float = 0.0  # the usual step

    @property
    def need_s(self) -> float:
        """From the request to the end: the step that runs, one until all have agreed, a save that may be slower."""
        return 2 * self.step_s + 2 * self.save_s + END_MARGIN_S if self.save_s else 0.0

    def near(self, now_s: float) -> bool:
        """Whether the ranks have to stop."""
        return self.end_s is not None and now_s >= self.end_s - max(self.lead_s, self.need_s)

    def over(self, now_s: float) -> bool:
        """Whether nothing more can be waited for."""
        return self.end_s is not None and now_s >= self.end_s - min(END_MARGIN_S, self.lead_s / 3)

    @property
    def why(self) -> str:
        """Why the ranks are asked to stop."""
        earlier = ""
        if self.need_s > self.lead_s:
            earlier = (
                f"; {self.need_s:.0f} s ahead instead of {self.lead_s:.0f} s, since a save takes {self.save_s:.0f} s"
            )
        return f"the job's time limit is near{earlier}"

    def too_late(self, step: int | None) -> str:
        """What to say of ranks that were still at it when time was up; `step`: the last one done, None without any."""
        if step is None:
            return "no step was done in the time that this job had: give it more (slurm.runtime)"
        known = f"a step takes {self.step_s:.0f} s" + (f" and a save {self.save_s:.0f} s" if self.save_s else "")
        return (
            f"the ranks were asked to save {self.lead_s:.0f} s before the time limit and had not when it came, at step "
            f"{step} ({known}): a warning further ahead (slurm.signal) gives them time"
        )
