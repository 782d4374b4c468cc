"""Launches that go well: ranks, offsets, environments, logs, files, restarts asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.distributed.launching import Launch

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(120)]


def test_two_nodes_of_two_ranks(tmp_path: Path) -> None:
    done = Launch(tmp_path / "run", {"nodes": 2, "gpus_per_node": 2}).run()
    assert done.status == 0, done.output
    assert "4 of 4 ranks joined in" in done.output
    assert done.last_line == "train of run: finished at step 5"
    plan = done.file("0/plan.json")
    assert [node["rank_offset"] for node in plan["nodes"]] == [0, 2]
    assert plan["master_proven"]
    environment = json.loads(done.out.read_text())["environment"]
    wanted = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "NODE_RANK": "0"}
    wanted |= {"NUM_NODES": "2", "TRAINPKG_HOST": "sim0", "TRAINPKG_DEVICE": "cpu", "TRAINPKG_DIST_BACKEND": "gloo"}
    assert wanted.items() <= environment.items()
    assert "TRAINPKG_SECRET" not in environment
    for rank in range(4):
        assert (tmp_path / "run/launch/1/0" / f"rank-{rank}.log").read_text() == f"rank {rank} of 4 from step 0\n"
    verdict = done.file("attempt.json")
    assert (verdict["verdict"], verdict["step_first"], verdict["step_last"]) == ("finished", 1, 5)


def test_uneven_nodes_have_prefix_sums_as_offsets(tmp_path: Path) -> None:
    done = Launch(tmp_path / "run", {"nodes": 3}, {"gpus_per_node": [1, 3, 1]}).run()
    assert done.status == 0, done.output
    assert [node["rank_offset"] for node in done.file("0/plan.json")["nodes"]] == [0, 1, 4]
    assert "rank 3 of 5" in (tmp_path / "run/launch/1/0/rank-3.log").read_text()


def test_ranks_as_programs_of_their_own(tmp_path: Path) -> None:
    done = Launch(tmp_path / "run", {"nodes": 1, "gpus_per_node": 2, "start": "exec"}).run()
    assert done.status == 0, done.output
    assert "rank 1 of 2" in (tmp_path / "run/launch/1/0/rank-1.log").read_text()


def test_real_gloo_group_over_two_nodes(tmp_path: Path) -> None:
    spec = {"entry": "tests.distributed.entries:gloo", "preload": ["torch", "torch.distributed"]}
    done = Launch(tmp_path / "run", {"nodes": 2, "gpus_per_node": 2}, spec).run()
    assert done.status == 0, done.output


def test_a_preload_that_starts_threads_falls_back_to_programs(tmp_path: Path) -> None:
    spec = {"preload": ["tests.distributed.threaded"]}
    done = Launch(tmp_path / "run", {"nodes": 1, "gpus_per_node": 2}, spec).run()
    assert done.status == 0, done.output
    assert "cannot be forked safely" in (tmp_path / "run/launch/1/0/node-0.log").read_text()


def test_a_finished_run_is_not_trained_again(tmp_path: Path) -> None:
    from tests.distributed.launched import make_run

    fingerprint = make_run(tmp_path / "run/train.json").fingerprint()
    first = Launch(tmp_path / "run", environment={"TEST_FINGERPRINT": fingerprint}).run()
    assert first.status == 0, first.output
    text = first.out.read_text()
    first.out.unlink()  # as Snakemake does before a job
    second = Launch(tmp_path / "run").run()
    assert second.status == 0
    assert "finished already" in second.output
    assert second.out.read_text() == text
    assert not (tmp_path / "run/launch/2").exists()


def test_another_fingerprint_moves_the_old_run_aside(tmp_path: Path) -> None:
    from tests.distributed.launched import make_run

    old = make_run(tmp_path / "run/train.json").fingerprint()
    Launch(tmp_path / "run").run()
    (tmp_path / ".old" / f"run.{old}").mkdir(parents=True)  # taken already
    second = Launch(tmp_path / "run", more={"seed": 1}).run()
    assert second.status == 0, second.output
    assert (tmp_path / ".old" / f"run.{old}.2" / "launch/1/attempt.json").is_file()
    assert second.file("attempt.json")["verdict"] == "finished"
    assert "from step 0" in (tmp_path / "run/launch/1/0/rank-0.log").read_text()
