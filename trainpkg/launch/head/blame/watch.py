"""When is a silent node lost? Pure: times come in, sentences go out, no clock is read here.

Silence alone proves little: a switch that reboots silences a node whose ranks compute on. So a node silent for a few
seconds is named at once, and given up only when no step has completed anywhere for a while either (ranks wait for each
other, so the missing node's are stuck or gone), or when the silence outlasts `launch.heartbeat_timeout_s`.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field

from trainpkg.launch.wire import GAP_S

SILENT_S = 5.0


@dataclass
class Watch:
    """Silence of nodes against the pace of steps. All times are seconds on one monotonic clock."""

    timeout_s: float
    now_s: float
    heard_s: dict[int, float] = field(default_factory=dict)
    began_s: float = field(init=False)
    step: int | None = None
    step_s: float = 0.0
    stepless: bool = False  # ranks evaluate or save: no step is to be expected
    named: set[int] = field(default_factory=set)
    durations: deque[float] = field(default_factory=lambda: deque(maxlen=64))

    def __post_init__(self) -> None:
        self.began_s = self.now_s

    def heard(self, node: int, now_s: float) -> None:
        self.heard_s[node] = now_s

    def stepped(self, step: int, now_s: float) -> None:
        """Some rank has completed this step."""
        if self.step is not None and step > self.step:
            self.durations.append((now_s - self.step_s) / (step - self.step))
        if self.step is None or step > self.step:
            self.step, self.step_s = step, now_s

    @property
    def pace_s(self) -> float | None:
        """The usual time of a step, where it is known."""
        return statistics.median(self.durations) if self.durations else None

    @property
    def patience_s(self) -> float:
        """How long no step may complete before a silent node counts as lost."""
        if self.pace_s is None or self.stepless:  # starting up, loading data, saving
            return self.timeout_s
        return min(max(SILENT_S, 3 * self.pace_s), self.timeout_s)

    def look(self, now_s: float) -> tuple[list[int], list[int], list[int]]:
        """(nodes newly silent, nodes heard again, nodes lost) since the last look, which should be about BEAT_S ago."""
        if now_s - self.now_s > GAP_S:  # a suspended job wakes up: what was sent meanwhile is still to be read
            self.heard_s = dict.fromkeys(self.heard_s, now_s)
            self.step_s = now_s
        self.now_s = now_s
        silent = {node for node, heard_s in self.heard_s.items() if now_s - heard_s > SILENT_S}
        fresh, back = sorted(silent - self.named), sorted(self.named - silent)
        self.named = silent
        stuck = self.step is not None and now_s - self.step_s > self.patience_s
        lost = [node for node in sorted(silent) if stuck or now_s - self.heard_s[node] > self.timeout_s]
        return fresh, back, lost
