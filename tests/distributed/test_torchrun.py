"""Ranks that torchrun starts: same plan, logs, blame and status as with spawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.distributed.launching import Launch

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(120)]
TWO = {"nodes": 2, "gpus_per_node": 2}
GLOO = {"entry": "tests.distributed.entries:gloo"}


@pytest.mark.parametrize("backend", ["torchrun", "torchrun-static"])
def test_a_group_of_four(tmp_path: Path, backend: str) -> None:
    done = Launch(tmp_path / "run", TWO | {"backend": backend}, GLOO).run()
    assert done.status == 0, done.output
