"""Killed on a real Slurm, again and again, and as if left alone in the end: a few kills; `make chaos` has the many."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.chaos import Kills, play
from tests.cluster.chaos_verdict import Lived, wrong_starts
from tests.cluster.lab import Lab
from tests.cluster.victims import Kill

# (target, moment, the how-manieth of its life, how far into it, which victim)
FEW = [
    Kill("rank", "save", 2, 0.7, 0.6),
    Kill("power of a node", "step", 9, 0.5, 0.9),
    Kill("launcher", "step", 10, 0.2, 0.0),
]


@pytest.mark.timeout(900)
def test_a_few_kills(lab: Lab, shared_dir: Path) -> None:
    [result] = play(lab, shared_dir, Kills([*FEW], per_run=len(FEW)), num_steps=50)
    assert len(result.kills) == len(FEW)
    assert not result.wrong, result


def test_a_life_that_begins_too_early_is_seen() -> None:
    """The judge itself: lives go on from the newest checkpoint, told of or not, and from nothing older."""
    first = Lived.read("first", "starts at step 0\nchaos: step 7\nchaos: latest step-00000007\nchaos: step 16\n")
    assert (first.first, first.saved, first.last) == (0, 7, 16)
    never = Lived.read("never", "distributed init")
    for began, wrong in ((7, 0), (14, 0), (0, 1), (21, 1)):
        then = Lived.read("then", f"goes on from step-{began:08d}\nchaos: step {began + 1}\n")
        assert len(wrong_starts([first, never, then], 7)[0]) == wrong, began
    again = Lived("again", 7, 30, 28)
    assert wrong_starts([first, never, again], 7) == (["again did 9 steps again, with a checkpoint every 7 steps"], 9)


@pytest.mark.long
@pytest.mark.timeout(3 * 3600)
def test_many_kills(tmp_path: Path) -> None:
    with Lab(num_nodes=3, gpus_per_node=0, conf={"SlurmdTimeout": 10}) as lab:
        results = list(play(lab, lab.shared_dir, Kills.drawn(56, seed=1)))
    assert sum(len(result.kills) for result in results) == 56
    assert not [result for result in results if result.wrong]
