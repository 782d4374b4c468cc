"""What a run refuses with a sentence on every rank: other data, files that cannot be read or written."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.start import Ranks, config, run_ranks
from trainpkg.runtime import manifest

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("trained")
    run_ranks(config(), place, 2)
    return place


def check_all_say(ranks: Ranks, *sentences: str) -> None:
    for log in ranks.logs:
        text = log.read_text()
        assert "Traceback" not in text and all(sentence in text for sentence in sentences), text


def other_data() -> None:
    from trainpkg.data import digits

    plain = digits.load
    digits.load = lambda *arguments: dataclasses.replace(plain(*arguments), digest="0123456789abcdef")


def test_a_checkpoint_of_other_data_is_refused(trained: Path, tmp_path: Path) -> None:
    digest = json.loads((trained / "train.json").read_text())["data_digest"]
    sentences = (f"is of data with digest {digest}, the data here have 0123456789abcdef", "the same Python everywhere")
    for stage in ("train", "evaluate"):
        shutil.copytree(trained, tmp_path / stage)
        check_all_say(
            run_ranks(config(), tmp_path / stage, 2, 2, stage=stage, attempt=2, before=other_data), *sentences
        )
    run_dir = tmp_path / "evaluate"
    run_ranks(config(), run_dir, 2, stage="evaluate", attempt=3)
    assert json.loads((run_dir / "evaluation.json").read_text())["data_digest"] == digest
    forget_data(run_dir / "checkpoints" / "step-00000008")
    run_ranks(config(), run_dir, 2, stage="evaluate", attempt=4, before=other_data)


def data_of_its_own() -> None:
    """As nodes have them where each prepared a cache of its own, from another version."""
    from trainpkg.data import digits

    plain = digits.load
    digits.load = lambda *arguments: dataclasses.replace(plain(*arguments), digest=f"of-rank-{os.environ['RANK']}")


@pytest.mark.failure("F111")
def test_ranks_whose_nodes_hold_other_data_are_named(tmp_path: Path) -> None:
    """No rank prepares data for others: each builds them from what is installed, and all compare what they have."""
    ranks = run_ranks(config(), tmp_path, 2, 2, before=data_of_its_own)
    check_all_say(ranks, "the data's digest differs between ranks: 'of-rank-0' on rank 0", "'of-rank-1' on rank 1")


def forget_data(folder: Path) -> None:
    """As checkpoints were before they said of which data they are."""
    names = list(manifest.read_manifest(folder))
    state = json.loads((folder / "state.json").read_text())
    del state["data_digest"]
    (folder / "state.json").write_text(json.dumps(state))
    manifest.write_manifest(folder, manifest.describe(folder, names), step=8)


def stale_shard() -> None:
    """One rank's view of one file is stale, as on a network file system."""
    plain = manifest.facts_of

    def facts_of(path: Path) -> dict[str, int]:
        if path.name == "rank-00001.safetensors":
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE), str(path))
        return plain(path)

    manifest.facts_of = facts_of


def test_a_file_that_cannot_be_read_is_not_taken_for_damaged(trained: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(trained, run_dir)
    ranks = run_ranks(config(), run_dir, 2, 2, attempt=2, before=stale_shard)
    check_all_say(ranks, "step-00000008/rank-00001.safetensors cannot be read (Stale file handle), and may be whole")
    assert "passed over" not in ranks.text()


def refuse_weights(error: Exception) -> None:
    from trainpkg import export

    def save_file(weights: Any, path: Path, metadata: Any) -> None:
        path.write_bytes(b"half")
        raise error

    export.save_file = save_file  # type: ignore[attr-defined,assignment]


def refuse_by_safetensors() -> None:
    from safetensors import SafetensorError

    refuse_weights(SafetensorError("I/O error: No space left on device"))


def refuse_by_system() -> None:
    refuse_weights(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))


@pytest.mark.parametrize("before", [refuse_by_safetensors, refuse_by_system])
def test_weights_that_cannot_be_written(trained: Path, tmp_path: Path, before: Callable[[], None]) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(trained, run_dir)
    model = (run_dir / "model" / "model.safetensors").read_bytes()
    ranks = run_ranks(config(), run_dir, 2, 2, attempt=2, before=before)
    check_all_say(ranks, f"the weights cannot be written to {run_dir / 'model'}: ", "No space left on device")
    assert {path.name for path in (run_dir / "model").iterdir()} == {"model.safetensors", "config.json"}
    assert (run_dir / "model" / "model.safetensors").read_bytes() == model
