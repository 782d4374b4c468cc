"""The files of a program of the user's own: its script before anything starts, what it leaves behind at its end."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from trainpkg import contract
from trainpkg.config import Run
from trainpkg.errors import UserError
from trainpkg.launch.head import attempt, own
from trainpkg.launch.head.attempt import Folder
from trainpkg.launch.head.outcome import Outcome
from trainpkg.launch.spec import Spec


def run_of(name: str = "a", **keys: Any) -> Run:
    return Run.model_validate({"run": name, "recipe": "r", **keys})


def test_a_script_that_nobody_makes_is_missed_before_anything_is_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there.py").touch()
    fine = run_of(entry={"script": "there.py"})
    made = run_of(entry={"script": "made.py"}, inputs=["./made.py"])
    assert contract.problems([fine, made]) == []
    told = contract.problems([run_of("b", entry={"script": "ther.py"}), run_of("c", entry={"script": "x/there.py"})])
    for name, script in (("b", "ther.py"), ("c", "x/there.py")):
        sentence = f"run {name!r}: entry.script = {script!r}: there is no such file (looked for from {tmp_path})"
        assert sentence in told


def test_a_module_that_is_not_there_is_missed_and_nothing_of_it_is_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("whole/__init__.py", "whole/deep/work.py", "whole/__main__.py", "bare/__init__.py", "beside/far.py"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("raise SystemExit('imported')")
    fine: list[dict[str, Any]] = [
        {"entry": {"module": name}} for name in ("whole", "whole.deep.work", "json.tool", "torch.distributed.run")
    ]
    fine += [
        {"entry": {"module": "far"}, "launch": {"env_prepend": {"PYTHONPATH": "beside"}}},
        {"entry": {"module": "made.later"}, "inputs": ["made/later.py"]},
    ]
    elsewhere: list[dict[str, Any]] = [
        {"python": "/venv/bin/python"}, {"wrapper": "apptainer exec image.sif"}, {"prologue": ["module load x"]},
        {"backend": "command", "command": "apptainer exec image.sif {entry}"},
    ]  # fmt: skip
    fine += [{"entry": {"module": "typo"}, "launch": launch} for launch in elsewhere]
    assert contract.problems([run_of(**keys) for keys in fine]) == []
    for name in ("typo", "whole.typo", "typo.work", "whole.deep.work.more", "far"):
        (told,) = contract.problems([run_of("b", entry={"module": name})])
        assert f"run 'b': entry.module = {name!r}: there is no such module (looked for from {tmp_path}" in told
    (told,) = contract.problems([run_of(entry={"module": "bare"})])
    assert "'bare' is a package without __main__" in told


@pytest.fixture
def ended(tmp_path: Path) -> tuple[Run, Folder, Spec]:
    """A run after its ranks have ended, with what it says that it leaves behind."""
    outputs = ["{run_dir}/model.pt", str(tmp_path / "shared.pt")]
    run = run_of(entry={"module": "train", "outputs": outputs})
    folder = Folder.of("train", tmp_path / "runs/a/train.json")
    folder.run_dir.mkdir(parents=True)
    spec = attempt.make_spec(run, folder, ["n1"], "local")
    attempt.open_attempt(spec, folder, run)
    spec.generation_dir(0).mkdir()
    plan = {"world_size": 1, "nodes": [{"host": "n1", "num_ranks": 1}]}
    (spec.generation_dir(0) / "plan.json").write_text(json.dumps(plan))
    for path in map(Path, spec.outputs):
        path.write_text("weights")
    return run, folder, spec


def concluded(spec: Spec) -> Outcome:
    outcome = Outcome("finished", 0, generations=1)
    own.conclude(spec, outcome, time.time())
    return outcome


def test_what_was_there_before_the_run_is_not_what_it_leaves_behind(ended: tuple[Run, Folder, Spec]) -> None:
    _, folder, spec = ended
    assert concluded(spec).verdict == "finished" and folder.out.exists()
    path = folder.launches / "1/attempt.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"start": time.time() + 60}))
    failed = concluded(spec)
    assert (failed.verdict, failed.status) == ("failed", 1)
    assert "model.pt is older than the run, so another one's (as with 1 more): entry.outputs says" in failed.sentence


def test_a_finished_run_is_not_taken_for_whole_without_its_outputs(ended: tuple[Run, Folder, Spec]) -> None:
    run, folder, spec = ended
    concluded(spec)
    attempt.keep_finished(folder)
    folder.out.unlink()
    assert attempt.rewrite_if_finished(folder, run) and folder.out.exists()
    folder.out.unlink()
    (folder.run_dir / "model.pt").unlink()
    with pytest.raises(UserError, match=r"a/model.pt of its entry.outputs is not there any more: put it back"):
        attempt.rewrite_if_finished(folder, run)
    assert not folder.out.exists()
