"""Random deaths of ranks over two simulated nodes: is the cause named right each time, and how fast do the ranks go on?

`python -m tests.distributed.kills [--rounds 100] [--seed 0]`: one training of the real trainer, whose every generation
loses a rank in some way at some moment and is started again in place. Prints one line per round and the sums.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.distributed.launching import Launch

NUM_NODES, RANKS_PER_NODE = 2, 2
# how a rank ends -> what must be told of it
EXPECTED: dict[str, dict[str, Any]] = {
    "kill": {"kind": "signal", "signal": 9},
    "segv": {"kind": "signal", "signal": 11},
    "abrt": {"kind": "signal", "signal": 6},
    "raise": {"kind": "exception", "type": "ValueError"},
    "exit0": {"kind": "early_exit", "exit_code": 0},
    "exit7": {"kind": "exit", "exit_code": 7},
}
MOMENTS = ("at_birth", "before_join", "in_step", "in_step", "in_save", "anytime")


@dataclass(frozen=True)
class Fault:
    """`moment` and `how` as in `trainers`."""

    rank: int
    moment: str
    how: str
    argument: str = ""

    def __str__(self) -> str:
        return ":".join([self.moment, str(self.rank), *([self.argument] if self.argument else []), self.how])

    @property
    def told(self) -> dict[str, Any]:
        """What failure.json must say. Who raises before it can report is known by its log alone."""
        if (self.moment, self.how) == ("at_birth", "raise"):
            return {"rank": self.rank, "node": self.rank // RANKS_PER_NODE, "kind": "exit", "exit_code": 1}
        return {"rank": self.rank, "node": self.rank // RANKS_PER_NODE, **EXPECTED[self.how]}


def faults(rounds: int, seed: int) -> list[Fault]:
    """Random faults; no rank twice in a row, since the same end at the same step is not tried again."""
    draw = random.Random(seed)
    found: list[Fault] = []
    while len(found) < rounds:
        moment, how = draw.choice(MOMENTS), draw.choice(list(EXPECTED))
        rank = draw.choice([r for r in range(NUM_NODES * RANKS_PER_NODE) if not found or r != found[-1].rank])
        if moment == "anytime" and how == "raise":
            continue  # a thread's exception is its own
        argument = {"in_step": f"+{draw.randrange(12)}", "in_save": "0", "anytime": f"{draw.uniform(0.05, 1.5):.2f}"}
        found.append(Fault(rank, moment, how, argument.get(moment, "")))
    return found


@dataclass
class Round:
    """What was told of one fault."""

    fault: Fault
    told: dict[str, Any]

    @property
    def right(self) -> bool:
        words = ("ValueError", "the loss is nan") if self.fault.how == "raise" else ()
        return all(self.told.get(name) == value for name, value in self.fault.told.items()) and all(
            word in self.told["sentence"] for word in words
        )

    def __str__(self) -> str:
        return (
            f"{'ok   ' if self.right else 'WRONG'} {self.fault!s:<28} {self.told.get('sentence', 'nothing told')[:150]}"
        )


def play(folder: Path, rounds: int, seed: int, limit_s: float) -> tuple[list[Round], list[float], Launch]:
    """All rounds; seconds from each failure to the first step after it; the launch, which ends with the last fault."""
    drawn = faults(rounds, seed)
    sections = {"train": {"max_steps": 100_000, "global_batch": 16}, "checkpoint": {"every_steps": 7}}
    sections |= {"logging": {"every_steps": 5, "eval_every_steps": 100_000}, "model": {"name": "conv", "width": 8}}
    launch = Launch(
        folder / "run",
        {"nodes": NUM_NODES, "gpus_per_node": RANKS_PER_NODE, "max_restarts": rounds - 1, "stop_grace_s": 0.0},
        {"entry": "tests.distributed.trainers:main", "preload": ["torch", "torch._dynamo", "trainpkg.train"]},
        {"TEST_FAULT": " ".join(map(str, drawn))},
        {"config": sections},
        limit_s,
    )
    launch.run()
    found = []
    for generation, fault in enumerate(drawn):
        path = launch.folder / f"launch/1/{generation}/failure.json"
        found.append(Round(fault, json.loads(path.read_text()) if path.exists() else {}))
    seconds = [float(text) for text in re.findall(r"goes on with step \d+, ([\d.]+) s after", launch.output)]
    return found, seconds, launch


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kills-") as folder:
        found, seconds, launch = play(Path(folder), args.rounds, args.seed, 60.0 + 30.0 * args.rounds)
    for one in found:
        print(one)
    print(f"named right: {sum(one.right for one in found)} of {len(found)}; status of the launch: {launch.status}")
    if seconds:
        print(f"failure to first new step: median {statistics.median(seconds):.2f} s, most {max(seconds):.2f} s, "
              f"{len(seconds)} restarts with a step")  # fmt: skip
    return 0 if all(one.right for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
