"""The report as a person sees it: in a real browser, without a network."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.unit.run_tree import Tree, evaluation, record
from tests.workflow.browser import PROGRAM, Browser
from tests.workflow.conftest import Snakemake
from trainpkg import sheet
from trainpkg.tables.files.collect import Expected

SHEET = "run\trecipe\toptim.lr\nten\tdigits_ddp\t1e-2\ntwo\tdigits_ddp\t2e-3\nbad\tdigits_ddp\t5\n"
ROWS = "[...document.querySelectorAll('tbody tr')].map(row => row.cells[0].textContent)"
# Category, name in its list, file.
PLOTS = [
    ("Learning", "evaluation over steps", "evaluation_over_steps"),
    ("Learning", "loss over steps", "loss_over_steps"),
    ("Learning", "loss over time", "loss_over_time"),
    ("Learning", "loss over tokens or samples", "loss_over_data"),
    ("Learning", "parameters against the metric", "sweep"),
    ("Speed and cost", "attempts over time", "restarts"),
    ("Speed and cost", "memory", "memory"),
    ("Speed and cost", "scaling", "throughput_over_world_size"),
    ("Speed and cost", "throughput over steps", "throughput_over_steps"),
]


@pytest.fixture
def report(snakemake: Snakemake, checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The report of a sheet of which one run failed, from files as the launcher and the trainer leave them."""
    monkeypatch.chdir(checkout)
    (checkout / "config/runs.tsv").write_text(SHEET)
    tree = Tree(checkout / "results")
    for name, run in sheet.load(yaml.safe_load((checkout / "config/config.yaml").read_text())).runs.items():
        one = Expected(name, run.recipe, run.fingerprint(), run.flat)
        records = [
            *(record(step, 5 / step, memory_mb=300) for step in range(10, 110, 10)),
            evaluation(100, accuracy=0.9),
        ]
        if name == "bad":
            tree.config(one).metrics(name, records[:3]).attempt(
                name, 1, "failed", 1.8e9, 0.5, cause="rank 1 on n1 died"
            )
            continue
        best = {"metric": "accuracy", "mode": "max", "value": 0.9 + run.optim.lr, "step": 100}
        tree.finished(one, records, best=best)
        tree.json(name, "evaluation.json", {"fingerprint": one.fingerprint, "step": 100, "metrics": {"accuracy": 0.9}})
    topology = {"ok": True, "world_size": 2, "checks": [{"check": "network", "ok": True, "text": "478 us"}]}
    (checkout / "results/smoke").mkdir()
    (checkout / "results/smoke/2x1-auto-ddp-spawn.json").write_text(json.dumps(topology))
    # What `onerror` does: a rule that needs all results does not run when one failed.
    subprocess.run(
        [sys.executable, "-m", "trainpkg", "summarise", "--config", "config/config.yaml"], check=True, cwd=checkout
    )
    snakemake("--report", "report.html")
    return checkout / "report.html"


@pytest.fixture
def browser(tmp_path: Path) -> Browser:
    if PROGRAM is None:
        pytest.skip("no Chromium: apt-get install chromium")
    return Browser(tmp_path / "browser")


def show(page: Browser, category: str, name: str) -> None:
    """Click the eye beside a result."""
    page.evaluate("document.querySelector('nav ol a').click()")  # home
    page.click("#app li, #app li *", category)
    row = f"[...document.querySelectorAll('#app tr')].find(row => row.cells[0].textContent === {name!r})"
    page.wait_for(f"!!{row}")
    page.evaluate(f"{row}.querySelector('a').click()")


def test_the_report_opens_sorts_and_shows_without_a_network(report: Path, browser: Browser) -> None:
    with browser as page:
        page.open(report)
        assert "failed, still run or were never started" in page.wait_for("document.body.innerText")
        shown = page.evaluate("[...document.querySelectorAll('#app li')].map(item => item.innerText.trim())")
        assert {"Failures", "Learning", "Plan and smoke tests", "Runs", "Speed and cost"} <= set(shown)

        show(page, "Runs", "runs")
        assert page.wait_for(f"{ROWS}.length && {ROWS}", in_frame=True) == ["ten", "two", "bad"], "as in the sheet"
        for order in (["bad", "ten", "two"], ["two", "ten", "bad"]):
            page.click("th button", "optim.lr", in_frame=True)
            assert page.evaluate(ROWS, in_frame=True) == order
        page.evaluate("filter.value = 'FAILED'; filter.oninput()", in_frame=True)
        assert page.evaluate(ROWS, in_frame=True) == ["bad"]

        for name, words in (("failures", "rank 1 on n1 died"), ("where ranks ran", "n1"), ("smoke tests", "478 us")):
            show(page, "Failures" if name == "failures" else "Plan and smoke tests", name)
            page.wait_for(f"document.querySelector('tbody').innerText.includes({words!r})", in_frame=True)

        for category, name, file in PLOTS:
            show(page, category, name)
            image = f"document.querySelector('img[src*=\"filename={file}.svg\"]')"
            assert page.wait_for(f"{image}?.complete && {image}.naturalHeight") > 200, name
        assert {address.partition(":")[0] for address in page.requested} <= {"file", "data"}, "nothing from the network"
        assert not page.complaints
