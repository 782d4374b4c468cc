"""A smoke test asks its nodes how they are before any rank starts, and other stages do not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.distributed.launching import Launch

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(120)]
SMOKE = {"stage": "smoke"}


def test_a_bad_row_ends_the_smoke_test_before_any_rank(tmp_path: Path) -> None:
    environment = {"NCCL_IB_HCA": "mlx5_77"}
    launched = Launch(tmp_path / "run", {"nodes": 2, "gpus_per_node": 1}, more=SMOKE, environment=environment).run()
    assert launched.status == 1
    assert "bad   NCCL_IB_HCA=mlx5_77  mlx5_77: no such device or port" in launched.output
    assert "smoke test failed at 'nodes': NCCL_IB_HCA=mlx5_77" in launched.output
    assert "name those, or unset the variable" in launched.output.splitlines()[-1], "the verdict has the fix"
    folder = tmp_path / "run/train/launch/1"
    assert not list(folder.glob("0/rank-*.log"))
    assert json.loads((folder / "train.failed.json").read_text())["ok"] is False
    # a training is not asked: its smoke test was
    launched = Launch(tmp_path / "other", {"nodes": 2, "gpus_per_node": 1}, environment=environment).run()
    assert launched.status == 0, launched.output


def test_warnings_are_written_and_end_nothing(tmp_path: Path) -> None:
    environment = {"http_proxy": "http://proxy:1"}
    launched = Launch(tmp_path / "run", {"nodes": 2, "gpus_per_node": 1}, more=SMOKE, environment=environment).run()
    assert launched.status == 0, launched.output
    assert "warn  proxies" in launched.output
    told = json.loads((tmp_path / "run/train/launch/1/nodes.json").read_text())
    assert list(told["nodes"]) == ["sim0", "sim1"]
    assert len(told["nodes"]["sim1"]) >= 20
