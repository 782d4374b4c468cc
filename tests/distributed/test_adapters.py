"""Data from files on several ranks: trained by workers, judged alike on any number of ranks, none waits for another."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.start import records, run_ranks, start, weights
from tests.unit.adapters import ADAPTERS, run_of
from trainpkg.data.samples import MapStyle

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(900)]


@pytest.mark.parametrize("name", [name for name in ADAPTERS if name != "parquet"])
def test_ranks_share_files_and_a_killed_run_goes_on(tmp_path: Path, name: str) -> None:
    """A global batch of 20 and an epoch that it does not divide, 3 epochs on 1, 2 and 3 ranks."""
    parts = ADAPTERS[name](tmp_path)
    common = {"train": {"max_steps": 8, "global_batch": 20}, "checkpoint": {"every_steps": 4}, "evaluate": {"batch": 4}}
    run = run_of(parts, data={"workers": 1}, **common)
    run_ranks(run, tmp_path / "whole", 2)
    ranks = start(run_of(parts, **common), tmp_path / "killed", 2)
    ranks.wait_for_step(5)
    for process in ranks.processes:
        os.kill(process.pid, 9)
    ranks.wait()
    run_ranks(run, tmp_path / "killed", 2, attempt=2)
    one, other = weights(tmp_path / "whole"), weights(tmp_path / "killed")
    assert all((one[key] == other[key]).all() for key in one), "bit for bit, without workers and with them"
    assert records(tmp_path / "whole")[-1] == records(tmp_path / "killed")[-1]
    found = []
    for num_ranks in (1, 3):
        run_ranks(run_of(parts, **common), tmp_path / "whole", num_ranks, stage="evaluate")
        result = json.loads((tmp_path / "whole" / "evaluation.json").read_text())
        found.append((result["num_samples"], result["metrics"]))
    assert found[0] == found[1]


def tell_who_makes_batches() -> None:
    plain, rank_pid = MapStyle.batch, os.getpid()

    def batch(self: MapStyle, *request: Any) -> Any:
        print("made by", "the rank" if os.getpid() == rank_pid else "a worker", flush=True)
        return plain(self, *request)

    MapStyle.batch = batch  # type: ignore[method-assign]


@pytest.mark.parametrize("name", ["image_folder"])
def test_the_smoke_test_reads_files_by_its_workers(tmp_path: Path, name: str) -> None:
    run = run_of(ADAPTERS[name](tmp_path), data={"workers": 1})
    ranks = run_ranks(run, tmp_path / "smoke", 2, stage="smoke", before=tell_who_makes_batches)
    assert "made by a worker" in ranks.text() and "made by the rank" not in ranks.text()
