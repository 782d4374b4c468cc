"""sacct's words, as a real one printed them, and how they are joined to launches."""

from __future__ import annotations

from pathlib import Path

import pytest
from run_tree import NOW_S, Tree, expected, has, record

from trainpkg.tables.rows.accounting import Life, life_at, parse
from trainpkg.tables.summarise import write_tables

# Job 71 was put back into the queue once; 72 runs still; 73 was cancelled before it started.
WORDS = """\
71|REQUEUED|40|1799990000|1799990040|
71.batch|CANCELLED|41|1799990000|1799990041|35000K
71.0|CANCELLED|41|1799990000|1799990041|1.5G
71|COMPLETED|100|1799990100|1799990200|
71.batch|COMPLETED|100|1799990100|1799990200|36M
72|RUNNING|10|1799999990|Unknown|
73|CANCELLED by 1000|0|Unknown|1799990200|
a line|of another|program
"""


def test_lives_of_jobs() -> None:
    found = parse(WORDS)
    assert [life.state for life in found["71"]] == ["REQUEUED", "COMPLETED"]
    first, second = found["71"]
    assert first.elapsed_s == 40
    assert first.max_rss_mb == 1.5 * 2**30 / 1e6
    assert second.max_rss_mb == pytest.approx(37.75, abs=0.01)
    assert found["72"][0].max_rss_mb is None
    assert found["73"][0].state == "CANCELLED"


@pytest.mark.parametrize(
    ("start_s", "index"), [(1799990001, 0), (1799990039, 0), (1799990100, 1), (1799990060, 0), (1799990210, 1)]
)
def test_a_launch_belongs_to_the_life_in_which_it_started(start_s: float, index: int) -> None:
    lives = parse(WORDS)["71"]
    assert life_at(lives, start_s) == lives[index]


def test_a_launch_of_another_time_belongs_to_none() -> None:
    """Job numbers begin anew when a site sets up its Slurm again."""
    assert life_at(parse(WORDS)["71"], 1_700_000_000.0) is None
    assert life_at(parse(WORDS)["71"], None) is None
    assert life_at([Life("COMPLETED", 1, 0.0, 1.0, None)], None) is None


def test_one_call_for_all_jobs_whose_end_is_not_known(tmp_path: Path) -> None:
    tree = Tree(tmp_path).finished(expected("a"), [record(10, 1.0)]).config(expected("b"))
    tree.attempt("a", 1, "again", 1799990001, 0.01).attempt("a", 2, "finished", 1799990101, 0.02, slurm_job_id="71")
    tree.attempt("b", 1, None, 1799999995, None, slurm_job_id="72").attempt("b", 2, "failed", NOW_S, 0.1)
    tree.attempt("b", 3, "failed", NOW_S, 0.1, slurm_job_id=None)
    asked: list[list[str]] = []

    def ask(job_ids: object) -> str:
        asked.append(list(job_ids))  # type: ignore[call-overload]
        return WORDS

    tables_dir = tmp_path / "tables"
    for _ in range(2):
        runs = [expected("a"), expected("b")]
        found = write_tables(tmp_path, runs, NOW_S, tables_dir, ask=ask).attempts
    assert asked == [["71", "72"], ["72"]]
    rows = found.astype(object).where(found.notna(), None).to_dict("records")
    has(rows[0], sacct_state="REQUEUED", sacct_elapsed_s=40, sacct_max_rss_mb=1610.612736)
    has(rows[1], sacct_state="COMPLETED", sacct_elapsed_s=100)
    has(rows[2], sacct_state="RUNNING", sacct_max_rss_mb=None)
    has(rows[4], slurm_job_id=None, sacct_state=None)
