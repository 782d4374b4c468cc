"""Pages of tables: what they hold, how large they may become, and what stands in those of the report."""

from __future__ import annotations

import base64
import json
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from run_tree import NOW_S, Tree, expected, record

from trainpkg.tables.pages import page as paging
from trainpkg.tables.pages.evidence import smoke_table
from trainpkg.tables.pages.page import page
from trainpkg.tables.pages.shown import pages
from trainpkg.tables.summarise import summarise


def columns(content: bytes) -> dict[str, list[Any]]:
    """What the script of a page unpacks."""
    found = re.search(rb'const data = "([^"]*)"', content)
    assert found
    packed = json.loads(zlib.decompress(base64.b64decode(found[1])))
    return {
        name: [None if at < 0 else words[at] for at in values] if kind == "text" else values
        for name, kind, values, words in packed
    }


def test_values_gaps_and_digits() -> None:
    table = pd.DataFrame({
        "name": pd.Series(["a", None, "</script>"], dtype="string"),
        "whole": pd.Series([3, None, -2], dtype="Int64"),
        "real": [1 / 3, np.nan, 1e-12 / 3],
        "endless": [np.inf, 0.5, 2.0],
        "empty": [np.nan] * 3,
        "yes": pd.Series([True, None, False], dtype="boolean"),
    })  # fmt: skip
    content = page("Title <b>", "All of it.", table, "x.csv")
    assert columns(content) == {
        "name": ["a", None, "</script>"], "whole": [3, None, -2], "real": [0.333333, None, 3.33333e-13],
        "endless": [None, 0.5, 2.0], "yes": ["True", None, "False"],
    }  # fmt: skip
    assert b"Title &lt;b&gt;" in content
    assert content.count(b"</script>") == 1, "data cannot end the script"
    assert content == page("Title <b>", "All of it.", table, "x.csv")
    assert not re.search(rb"https?://", content), "no network"


def test_rows_that_do_not_fit_are_left_to_the_csv(monkeypatch: Any) -> None:
    """Browsers show nothing of a data URL beyond 2 MiB."""
    monkeypatch.setattr(paging, "MAX_PAGE_BYTES", 20_000)
    table = pd.DataFrame({"x": np.random.default_rng(0).random(10_000)})
    content = page("T", "E.", table, "x.csv")
    assert len(content) <= 20_000
    rows = len(columns(content)["x"])
    assert 500 < rows < 10_000
    assert f"The first {rows:,} of 10,000 rows; all are in x.csv.".encode() in content


def test_the_report_has_failures_places_and_what_differs_within_recipes(tmp_path: Path) -> None:
    tree = Tree(tmp_path).finished(expected("good", optim__lr=0.1), [record(10, 1.0)])
    tree.config(expected("bad", optim__lr=0.2)).attempt("bad", 1, "again", NOW_S - 9000, 1.0)
    tree.attempt("bad", 2, "failed", NOW_S - 4000, 1.0, cause="rank 1 died", status=137)
    tree.config(expected("going")).attempt("going", 1, None, NOW_S - 60, None)
    tree.json("going", "lock", {"job": "7", "beat_unix_s": NOW_S - 5})
    nodes = [{"host": f"n{index}", "num_ranks": 4 if index < 10 else 2} for index in range(12)]
    plan = {"world_size": 44, "nodes": nodes, "master_addr": "10.0.0.1", "master_port": 4000}
    tree.json("bad", "launch/2/0/plan.json", plan)
    other = expected("other", "gpt", model__width=64)
    sheet = [expected("good", optim__lr=0.1), expected("bad", optim__lr=0.2), expected("going"), other]
    tables = summarise(tmp_path, sheet, NOW_S)
    made = pages(tables, smoke_table(tmp_path))
    assert sorted(made) == [f"{name}.html" for name in ("attempts", "failures", "plan", "runs", "seeds", "smoke")]
    runs = columns(made["runs.html"])
    assert runs["status"] == ["finished", "failed", "running", "absent"]
    assert runs["optim.lr"] == [0.1, 0.2, 0.001, 0.001]
    assert "model.width" not in runs, "differs between recipes alone"
    failures = columns(made["failures.html"])
    assert failures["run"] == ["bad"]
    assert (failures["cause"], failures["run_is_now"], failures["exit_status"]) == (["rank 1 died"], ["failed"], [137])
    places = columns(made["plan.html"])
    assert places["run"] == ["good", "bad", "going", "other"]
    assert places["hosts"][1] == "n0, n1, n2, n3, n4, n5, n6, n7, … n11"
    assert (places["ranks_per_node"][1], places["master"][1]) == ("4 x10, 2 x2", "10.0.0.1:4000")
    assert places["attempt"] == [1, 2, 1, None]


def test_without_failures_the_page_says_so(tmp_path: Path) -> None:
    Tree(tmp_path).finished(expected("good"), [record(10, 1.0)])
    assert (
        b"No attempt failed."
        in pages(summarise(tmp_path, [expected("good")], NOW_S), smoke_table(tmp_path))["failures.html"]
    )


def test_smoke_tests_that_passed_failed_and_came_to_nothing(tmp_path: Path) -> None:
    smoke = tmp_path / "smoke"
    (smoke / "c/launch/2").mkdir(parents=True)
    (smoke / "d/launch").mkdir(parents=True)
    checks = [{"check": "places", "ok": True, "text": "n1: 2", "seconds": 0.5}]
    (smoke / "a.json").write_text(json.dumps({"ok": True, "num_nodes": 2, "started": NOW_S, "checks": checks}))
    checks = [{"check": "network", "ok": False, "problem": "no answer"}, "damaged"]
    (smoke / "b.json").write_text(json.dumps({"ok": False, "checks": checks}))
    (smoke / "c/launch/2/attempt.json").write_text(
        json.dumps({"end": NOW_S, "verdict": "failed", "cause": "n2 is away"})
    )
    (smoke / "e.json").write_text("{torn")
    table = smoke_table(tmp_path)
    rows = table[["topology", "check", "result", "problem"]].astype(object).where(lambda its: its.notna(), None)
    assert rows.to_numpy().tolist() == [
        ["a", "places", "ok", None],
        ["b", "network", "failed", "no answer"],
        ["c", "launch", "failed", "n2 is away"],
        ["d", "launch", None, None],
        ["e", "launch", None, None],
    ]
    assert table["start_utc"][0] == "2027-01-15T08:00:00Z"
    assert smoke_table(tmp_path / "nowhere").empty
