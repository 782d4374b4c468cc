"""Checkpoints are whole or passed over; a save that fails loses nothing."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.start import config, run_ranks, start, weights

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("trained")
    run_ranks(config(), place, 2)
    return place


def names(run_dir: Path) -> list[str]:
    return sorted(path.name for path in (run_dir / "checkpoints").iterdir())


@pytest.mark.failure("F107")
def test_latest_and_retention(tmp_path: Path) -> None:
    run_ranks(config(checkpoint__every_steps=2, checkpoint__keep_last=3), tmp_path, 2)
    assert names(tmp_path) == ["latest", "step-00000004", "step-00000006", "step-00000008"]
    assert (tmp_path / "checkpoints" / "latest").read_text() == "step-00000008\n"


def truncate(folder: Path) -> None:
    shard = folder / "rank-00001.safetensors"
    os.truncate(shard, shard.stat().st_size - 1)


def flip(folder: Path) -> None:
    shard = folder / "rank-00001.safetensors"
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)


def alter_manifest(folder: Path) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"]["state.json"]["bytes"] += 1
    (folder / "manifest.json").write_text(json.dumps(manifest))


DAMAGE: list[tuple[Callable[[Path], None], str]] = [
    (truncate, "rank-00001.safetensors has"),
    (flip, "rank-00001.safetensors is damaged: its CRC-32 is"),
    (alter_manifest, "manifest.json was altered"),
    (lambda folder: (folder / "manifest.json").unlink(), "manifest.json is missing: the save was interrupted"),
    (lambda folder: (folder / "manifest.json").write_text("{"), "manifest.json cannot be read"),
    (lambda folder: (folder / "index.json").unlink(), "index.json is missing"),
]


@pytest.mark.parametrize(("damage", "text"), DAMAGE, ids=[text for _, text in DAMAGE])
@pytest.mark.failure("F107")
def test_damaged_checkpoint_is_passed_over(
    trained: Path, tmp_path: Path, damage: Callable[[Path], None], text: str
) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(trained, run_dir)
    damage(run_dir / "checkpoints" / "step-00000008")
    ranks = run_ranks(config(), run_dir, 2, attempt=2)
    log = ranks.logs[0].read_text()
    assert "checkpoint step-00000008 is passed over: " in log and text in log
    assert "goes on from step-00000004" in log
    assert names(run_dir) == names(trained)
    again = run_ranks(config(), run_dir, 2, attempt=3)
    assert "goes on from step-00000008" in again.text(), "the damaged one was replaced by a whole one"
    assert all((weights(run_dir)[name] == tensor).all() for name, tensor in weights(trained).items())


def test_all_damaged_starts_anew_and_evaluation_refuses(trained: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(trained, run_dir)
    for folder in (run_dir / "checkpoints").glob("step-*"):
        truncate(folder)
    ranks = run_ranks(config(), run_dir, 2, 2, stage="evaluate", attempt=2)
    assert "holds no whole checkpoint; train the run first" in ranks.text()
    ranks = run_ranks(config(), run_dir, 2, attempt=3)
    assert "starts at step 0" in ranks.text() and "none of the 2 checkpoints" in ranks.text()


def test_evaluation_refuses_an_older_checkpoint_than_the_last(trained: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(trained, run_dir)
    newest = run_dir / "checkpoints" / "step-00000008"
    truncate(newest)
    ranks = run_ranks(config(), run_dir, 2, 2, stage="evaluate", attempt=2)
    for log in ranks.logs:
        text = log.read_text()
        assert "is of step 4, train.max_steps = 8, and newer is but what is damaged: " in text and str(newest) in text
    assert not (run_dir / "evaluation.json").exists()
    shutil.rmtree(newest)
    ranks = run_ranks(config(), run_dir, 2, 2, stage="evaluate", attempt=3)
    assert "is of step 4, train.max_steps = 8: the run is not finished" in ranks.text()


def test_checkpoint_of_another_run_is_refused(trained: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(trained, run_dir)
    ranks = run_ranks(config(optim__lr=1e-4), run_dir, 2, 2, attempt=2)
    assert "belongs to fingerprint" in ranks.text() and "Traceback" not in ranks.text()


def test_finished_run_started_again_rewrites_its_result_without_training(trained: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(trained, run_dir)
    (run_dir / "train.json").unlink()
    before = (run_dir / "metrics.jsonl").read_text()
    run_ranks(config(), run_dir, 2, attempt=2)
    assert (
        json.loads((run_dir / "train.json").read_text())["final"]
        == json.loads((trained / "train.json").read_text())["final"]
    )
    assert (run_dir / "metrics.jsonl").read_text() == before


def kill_in_save_at_8() -> None:
    """SIGKILL on all ranks between the shards and the manifest of the second save."""
    from trainpkg.runtime import manifest

    plain = manifest.write_manifest

    def write_manifest(root: Path, files: manifest.Files, **facts: object) -> None:
        if facts["step"] == 8:
            os.kill(os.getpid(), 9)
        plain(root, files, **facts)

    manifest.write_manifest = write_manifest


@pytest.mark.failure("F089")
@pytest.mark.failure("F107")
def test_kill_during_a_save_leaves_the_one_before(tmp_path: Path) -> None:
    ranks = start(config(), tmp_path, 2, before=kill_in_save_at_8)
    assert sorted(ranks.wait()) == [-9, 3], ranks.text()
    assert [name for name in names(tmp_path) if not name.startswith(".tmp-")] == ["latest", "step-00000004"]
    ranks = run_ranks(config(), tmp_path, 2, attempt=2)
    assert "goes on from step-00000004" in ranks.text()
    assert names(tmp_path) == ["latest", "step-00000004", "step-00000008"], "the interrupted one is swept up"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[tuple[Path, Callable[[], None] | None]]:
    """(a run directory that one checkpoint of a wide conv fills, what each rank does first).

    A real full file system where root may mount one, else a limit on the size of files.
    """
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=5m", "none", str(folder)]
    if os.geteuid() == 0 and subprocess.run(mount, check=False, capture_output=True).returncode == 0:
        yield folder, None
        subprocess.run(["umount", "-l", str(folder)], check=True)
    else:
        yield folder, limit_file_size_after_step_4


def limit_file_size_after_step_4() -> None:
    import signal

    from trainpkg.runtime.checkpoints.checkpoint import Checkpoints

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    plain = Checkpoints.maybe_save

    def maybe_save(self: Checkpoints, step: int) -> None:
        if step == 8:
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
        plain(self, step)

    Checkpoints.maybe_save = maybe_save  # type: ignore[method-assign]


def check_full_disk(folder: Path, before: Callable[[], None] | None, num_ranks: int, **keys: Any) -> None:
    run = config(model__width=64, checkpoint__keep_last=5, **keys)
    ranks = run_ranks(run, folder, num_ranks, 2, before=before)
    sentence = f"trainpkg: error: checkpoint of step 8 cannot be saved in {folder / 'checkpoints'}: no space left ("
    for log in ranks.logs:
        text = log.read_text()
        assert sentence in text and "bytes free" in text and "Traceback" not in text, text
    assert names(folder) == ["latest", "step-00000004"]
    assert all(report["user_error"] and not report["victim"] for report in ranks.events("exception"))


@pytest.mark.parametrize("beside", [False, True])
def test_full_disk_while_saving(small_disk: tuple[Path, Callable[[], None] | None], beside: bool) -> None:
    """`beside`: while training goes on; step 8 is not the last, so that it hears of it where the ranks meet."""
    folder, before = small_disk
    keys: dict[str, Any] = {"train__max_steps": 3000, "checkpoint__asynchronous": True} if beside else {}
    check_full_disk(folder, before, 2, **keys)
    if beside:
        return
    if before is None:
        subprocess.run(["mount", "-o", "remount,size=50m", str(folder)], check=True)
    ranks = run_ranks(config(model__width=64, checkpoint__keep_last=5), folder, 2, attempt=2)
    assert "goes on from step-00000004" in ranks.text()


def test_limit_on_file_size_while_saving(tmp_path: Path) -> None:
    check_full_disk(tmp_path, limit_file_size_after_step_4, 2)
