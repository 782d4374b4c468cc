"""A user's own script: its numbers in metrics.jsonl, its step in the verdict, what it leaves, its next attempt."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.launching import Launch
from trainpkg.tables.files.records import Metrics, parse

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(120)]
SCRIPT = "tests/distributed/telling_script.py"
LINES = "{run_dir}/lines.jsonl"


def launch(folder: Path, way: str, last: int = 6, entry: dict[str, Any] | None = None, kill: str = "") -> Launch:
    keys = {"nodes": 2, "gpus_per_node": 1, "max_restarts": 1}
    given = {"script": SCRIPT, "args": [way, "{run_dir}"], **(entry or {})}
    environment = {"TEST_LAST": str(last), "TEST_KILL": kill}
    return Launch(folder / "run", keys, {"entry": "none"}, environment, more={"entry": given})


def records(done: Launch) -> Metrics:
    return parse((done.folder / "metrics.jsonl").read_bytes())


def test_what_it_logs_is_recorded_and_its_step_is_in_the_verdict(tmp_path: Path) -> None:
    entry = {"outputs": ["{run_dir}/model.bin"]}
    done = launch(tmp_path, "log", entry=entry, kill="1:4:0").run()
    assert done.status == 0, done.output
    told = done.file("0/failure.json")
    assert (told["rank"], told["step"]) == (1, 4)
    assert "was killed by SIGKILL at step 4" in done.output
    found = records(done)
    assert found.column("step").tolist() == [1, 2, 3, 4, 5, 6]
    assert found.column("generation").tolist()[-1] == 1 and found.num_overwritten > 0
    assert found.column("loss")[-1] == 1 / 6 and found.column("samples")[-1] == 48
    assert 0 < found.column("samples_per_second")[-1] < 800
    assert found.evals[-1].metrics == {"accuracy": 1.0}
    assert found.num_bad == 0 and not found.notes
    assert done.file("attempt.json")["step_last"] == 6
    assert json.loads(done.out.read_text())["output_bytes"] == {str(done.folder / "model.bin"): 5}


def test_the_lines_that_it_writes_are_brought_in_after_a_warning_too(tmp_path: Path) -> None:
    def warn(launch: Launch, process: subprocess.Popen[bytes]) -> None:
        launch.wait_for(lambda: (launch.folder / "metrics.jsonl").exists(), "the first records")
        process.send_signal(signal.SIGUSR2)

    first = launch(tmp_path, "lines", last=5000, entry={"metrics": LINES}).run(warn)
    assert first.status == 75, first.output
    assert "its program asks to be run again (status 75)" in first.output
    kept = int((first.folder / "step").read_text())
    assert records(first).column("step")[-1] == kept
    second = launch(tmp_path, "lines", last=kept + 3, entry={"metrics": LINES}).run()
    assert second.status == 0, second.output
    found = records(second)
    assert found.column("step").tolist() == list(range(1, kept + 4))
    assert found.column("attempt").tolist() == [1.0] * kept + [2.0] * 3
    assert found.column("lr").tolist() == [0.1] * (kept + 3)
    assert found.num_bad == found.num_overwritten == 0


def test_a_program_that_leaves_nothing_behind_has_failed(tmp_path: Path) -> None:
    failed = launch(tmp_path, "log", entry={"outputs": ["{run_dir}/model.bin", "{run_dir}/{run}.pt"]}).run()
    assert failed.status == 1, failed.output
    assert f"has ended with status 0, but {failed.folder}/run.pt is not there: entry.outputs" in failed.last_line
    assert not failed.out.exists()
