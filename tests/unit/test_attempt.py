"""What an attempt leaves in the run directory, and what it makes of what lies there."""

from __future__ import annotations

from pathlib import Path

import pytest

from trainpkg.config import Run
from trainpkg.errors import UserError
from trainpkg.launch.head import attempt

RUN = Run.model_validate(
    {
        "run": "a",
        "recipe": "r",
        "task": "images",
        "model": {"name": "conv"},
        "data": {"name": "digits"},
        "train": {"max_steps": 1, "global_batch": 1},
    }
)


def other_run(tmp_path: Path) -> attempt.Folder:
    folder = attempt.Folder.of("train", tmp_path / "runs/a/train.json")
    folder.run_dir.mkdir(parents=True)
    for name in ("metrics.jsonl", "lock", "zzz", "finished.json"):
        (folder.run_dir / name).write_text(name)
    (folder.run_dir / "config.yaml").write_text("fingerprint: other\n")
    return folder


@pytest.mark.parametrize("text", ["", "a: [", "fingerprinted: 1\n"])
def test_a_torn_config_moves_nothing_away(tmp_path: Path, text: str) -> None:
    folder = other_run(tmp_path)
    (folder.run_dir / "config.yaml").write_text(text)
    with pytest.raises(UserError, match=r"config\.yaml does not say whose run lies in its directory"):
        attempt.set_aside_other_run(folder, RUN)
    assert (folder.run_dir / "metrics.jsonl").exists()


def test_another_run_goes_aside_whole_with_the_output_that_snakemake_deleted(tmp_path: Path) -> None:
    folder = other_run(tmp_path)
    target = Path(attempt.set_aside_other_run(folder, RUN))
    assert target == tmp_path / "runs/.old/a.other"
    assert {path.name for path in folder.run_dir.iterdir()} == {"lock"}
    assert (target / "train.json").read_text() == "finished.json"


def test_an_interrupted_move_is_taken_up_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = other_run(tmp_path)
    moved: list[str] = []
    rename = Path.rename

    def once(path: Path, target: Path) -> Path:
        if moved:
            raise KeyboardInterrupt
        moved.append(path.name)
        return rename(path, target)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", once)
        with pytest.raises(KeyboardInterrupt):
            attempt.set_aside_other_run(folder, RUN)
    assert (folder.run_dir / "config.yaml").exists()
    attempt.set_aside_other_run(folder, RUN)
    assert {path.name for path in folder.run_dir.iterdir()} == {"lock"}


def test_the_same_run_stays(tmp_path: Path) -> None:
    folder = other_run(tmp_path)
    (folder.run_dir / "config.yaml").write_text(f"fingerprint: {RUN.fingerprint()}\n")
    assert attempt.set_aside_other_run(folder, RUN) == ""
    assert (folder.run_dir / "metrics.jsonl").exists()
