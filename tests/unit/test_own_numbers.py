"""What a program of the user's own says, as lines of metrics.jsonl; its file of JSON lines followed; its inputs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError

import trainpkg
from trainpkg import script
from trainpkg.config import Run
from trainpkg.errors import UserError
from trainpkg.launch.head import attempt, collected
from trainpkg.launch.head.attempt import Folder
from trainpkg.launch.head.collected import Collected
from trainpkg.metric_lines import Lines
from trainpkg.tables.files.records import parse


def of(said: dict[str, Any], now: float = 110.0, **more: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Lines(2, 1, 100.0).of(said, now, **more)]


def test_fields_of_training_and_metrics_go_where_tables_look_for_them() -> None:
    said = {"step": 3, "loss": torch.tensor(0.5), "learning_rate": 0.1, "eval_loss": 2, "accuracy": 0.9, "model": "x"}
    train, evaluation = of(said)
    common = {"attempt": 2, "generation": 1, "step": 3, "time_s": 10.0}
    assert train == {"kind": "train", **common, "loss": 0.5, "lr": 0.1}
    assert evaluation == {"kind": "eval", **common, "metrics": {"loss": 2, "accuracy": 0.9}}
    both = {"step": 1, "global_step": 3, "lr": 5, "accuracy": 0.9, "eval_accuracy": 0.8, "eval_f1": 0.7, "time_s": 2.5}
    for line in (both, dict(reversed(both.items()))):
        train, evaluation = of(line)
        assert (train["step"], train["time_s"], evaluation["step"]) == (3, 2.5, 3)
        assert evaluation["metrics"] == {"accuracy": 0.9, "eval_accuracy": 0.8, "f1": 0.7}
    nan = of({"step": 3, "loss": float("nan")})[0]
    assert nan["loss"] is None and nan["note"] == "loss is nan"
    assert of({"kind": "eval", "step": 3, "metrics": {"f1": 1}})[0]["metrics"] == {"f1": 1}


@pytest.mark.parametrize(
    "said",
    [{"loss": 1.0}, {"step": -1, "loss": 1.0}, {"step": 1.5, "loss": 1.0}, {"step": True, "loss": 1.0}, {"step": "1"},
     {"step": float("nan"), "loss": 1.0}, {"step": float("inf"), "loss": 1.0}, {"step": 10**400, "loss": 1.0},
     {"step": 1, "epoch": 2.0}, {"step": 1, "loss": 10**400}, {"step": 1, "loss": "low"},
     {"step": 1, "loss": torch.zeros(2)}],
)  # fmt: skip
def test_what_says_nothing_makes_no_line(said: dict[str, Any]) -> None:
    assert of(said) == []


def test_speeds_follow_from_two_records_that_were_said_when_they_were_true() -> None:
    for at_once, found in ((True, 40.0), (False, None)):
        lines = Lines(1, 0, 0.0)
        lines.of({"step": 10, "loss": 1.0, "samples": 100}, 5.0, at_once)
        lines.of({"step": 10, "lr": 0.1}, 6.0, at_once)
        [second] = [json.loads(line) for line in lines.of({"step": 20, "loss": 1.0, "samples": 300}, 10.0, at_once)]
        assert second.get("samples_per_second") == found
        assert second.get("step_time_s") == (0.5 if at_once else None)


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def follow(tmp_path: Path, said: list[str]) -> Callable[[int], Collected]:
    tree = {"run": "a", "recipe": "r", "entry": {"module": "train", "metrics": "{run_dir}/lines"}}
    folder = Folder.of("train", tmp_path / "train.json")
    spec = attempt.make_spec(Run.model_validate(tree), folder, ["n1"], "local")
    return lambda generation: Collected(spec, generation, said.append)


def test_lines_are_taken_once_whole_and_from_the_start_of_a_file_that_begins_anew(
    tmp_path: Path, follow: Callable[[int], Collected]
) -> None:
    path = tmp_path / "lines"
    first = follow(0)
    first.look()  # before there is a file
    path.write_text('{"step": 1, "loss": 4}\nepoch 1 begins\n{"step": 2, "lo')
    first.look()
    first.look()
    assert parse((tmp_path / "metrics.jsonl").read_bytes()).column("step").tolist() == [1]
    with path.open("a") as file:
        file.write('ss": 3}\n{"step": 3, "loss": 2}')
    first.look(at_the_end=True)
    second = follow(1)  # what is there is not its own
    second.look()
    path.write_text('{"step": 2, "loss": 9}\n{"step": 3, "loss": 8}\n{"step": 4, "loss": 7}\n{"step": 5, "loss": 6}\n')
    second.look()
    found = parse((tmp_path / "metrics.jsonl").read_bytes())
    assert found.column("step").tolist() == [1, 2, 3, 4, 5]
    assert found.column("loss").tolist() == [4, 9, 8, 7, 6]
    assert found.column("generation").tolist() == [0, 1, 1, 1, 1]
    assert found.num_bad == 0


def test_a_file_cut_back_to_what_a_checkpoint_knows_is_not_taken_twice(
    tmp_path: Path, follow: Callable[[int], Collected]
) -> None:
    path = tmp_path / "lines"
    whole = [f'{{"step": {step}, "loss": {step}}}\n' for step in range(1, 6)]
    path.write_text("".join(whole))
    before = follow(0)
    path.write_text("".join(whole[:3]))  # it goes on from step 3
    before.look()
    with path.open("a") as file:
        file.write('{"step": 4, "loss": 40}\n')
    before.look()
    path.write_text("")  # and is seen half-way when it does so again
    before.look()
    path.write_text("".join(whole[:2]))
    before.look()
    with path.open("a") as file:
        file.write(whole[2] + '{"step": 4, "loss": 44}\n' + whole[4])
    before.look(at_the_end=True)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["loss"]) for line in lines] == [(4, 40), (4, 44), (5, 5)]


def test_all_that_is_new_at_the_end_is_taken(
    tmp_path: Path, follow: Callable[[int], Collected], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collected, "MAX_BYTES", 64)
    its = follow(0)
    (tmp_path / "lines").write_text("\n".join(f'{{"step": {step}, "loss": 1.0}}' for step in range(20)))
    its.look(at_the_end=True)
    assert parse((tmp_path / "metrics.jsonl").read_bytes()).column("step").tolist() == list(range(20))


def test_what_cannot_be_written_is_said_once_and_tried_again(
    tmp_path: Path, follow: Callable[[int], Collected], said: list[str]
) -> None:
    its = follow(0)
    (tmp_path / "metrics.jsonl").mkdir()
    (tmp_path / "lines").write_text('{"step": 1, "loss": 1}\n')
    its.look()
    its.look()
    [sentence] = said
    assert sentence.endswith(f"cannot be added to {tmp_path}/metrics.jsonl: Is a directory")
    (tmp_path / "metrics.jsonl").rmdir()
    its.look()
    assert parse((tmp_path / "metrics.jsonl").read_bytes()).column("step").tolist() == [1]


def test_log_does_nothing_without_a_launcher_and_wants_a_whole_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRAINPKG_SPEC", raising=False)
    script._writer.cache_clear()
    trainpkg.log(1, loss=1.0)
    with pytest.raises(UserError, match=r"trainpkg.log: step = 1.5 is no whole number"):
        trainpkg.log(1.5, loss=1.0)
    with pytest.raises(AttributeError, match="no attribute 'log_'"):
        _ = trainpkg.log_


@pytest.mark.parametrize(
    ("entry", "sentence"),
    [
        ({"metrics": "{run_dir}/metrics.jsonl"}, "is the file that lines are brought into"),
        ({"metrics": "{rank}.jsonl"}, "entry.metrics: '{rank}.jsonl': unknown placeholder {rank}"),
        ({"outputs": ["{run_dirr}/model.pt"]}, "unknown placeholder {run_dirr}; nearest: {run_dir}"),
    ],
)
def test_files_of_a_program_are_checked_with_the_config(entry: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Run.model_validate({"run": "a", "recipe": "r", "entry": {"module": "train", **entry}})
    assert sentence in str(caught.value)


def test_a_launcher_of_somebody_else_s_may_name_what_it_leaves_behind() -> None:
    launch = {"backend": "command", "command": "corenet-train"}
    tree = {"run": "a", "recipe": "r", "launch": launch}
    named = Run.model_validate({**tree, "entry": {"outputs": ["{run_dir}/model.pt"]}})
    assert named.fingerprint() == Run.model_validate(tree).fingerprint()
    with pytest.raises(ValidationError, match=r"has no \{entry\} where your program would come in"):
        Run.model_validate({**tree, "entry": {"script": "train.py"}})


def test_a_run_that_began_with_other_inputs_is_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = Run.model_validate({"run": "a", "recipe": "r", "entry": {"module": "train"}, "inputs": ["data.bin"]})
    folder = Folder.of("train", tmp_path / "runs/a/train.json")
    folder.run_dir.mkdir(parents=True)
    with pytest.raises(UserError, match=r"run 'a': inputs: data.bin: No such file .*what makes it has to run first"):
        attempt.open_attempt(attempt.make_spec(run, folder, ["n1"], "local"), folder, run)
    assert not list(folder.run_dir.iterdir())
    Path("data.bin").write_text("1")
    attempt.open_attempt(attempt.make_spec(run, folder, ["n1"], "local"), folder, run)
    assert attempt.set_aside_other_run(folder, run) == ""
    same = Path("data.bin").stat().st_mtime_ns // 10**9 * 10**9  # as a copy of the file system may say
    os.utime("data.bin", ns=(same, same))
    assert attempt.set_aside_other_run(folder, run) == ""
    (folder.run_dir / "inputs.json").rename(tmp_path / "kept")
    later = same + 10**9
    os.utime("data.bin", ns=(later, later))
    assert attempt.set_aside_other_run(folder, run) == "", "not known is not changed"
    (tmp_path / "kept").rename(folder.run_dir / "inputs.json")
    assert attempt.set_aside_other_run(folder, run).startswith(str(tmp_path / "runs/.old/a."))
