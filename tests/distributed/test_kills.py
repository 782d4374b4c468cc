"""Random deaths of ranks: the cause is named right, every time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distributed.kills import play

pytestmark = pytest.mark.distributed


@pytest.mark.failure("F096")
@pytest.mark.parametrize(
    ("rounds", "seed"),
    [
        pytest.param(4, 7, marks=pytest.mark.timeout(400), id="few"),
        pytest.param(100, 1, marks=[pytest.mark.long, pytest.mark.timeout(3600)], id="hundred"),
    ],
)
def test_random_kills_are_named_right(tmp_path: Path, rounds: int, seed: int) -> None:
    found, _, launch = play(tmp_path, rounds, seed, 60.0 + 30.0 * rounds)
    assert all(one.right for one in found), "\n".join([*map(str, found), launch.output[-4000:]])
    assert launch.status not in (0, 75, 78)
