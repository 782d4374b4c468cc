"""What stands beside the results in the report: where each run ran, what the smoke tests found, what went wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from trainpkg.tables.files.records import clean, number
from trainpkg.tables.rows.frames import text, utc, whole

SMOKE_TYPES = {
    "topology": "string", "check": "string", "result": "string", "found": "string", "problem": "string",
    "duration_s": "float64", "run": "string", "num_nodes": "Int64", "world_size": "Int64", "strategy": "string",
    "backend": "string", "device": "string", "start_utc": "string",
}  # fmt: skip
FAILURE_COLUMNS = (
    "run", "recipe", "attempt", "verdict", "cause", "exit_status", "run_again", "num_failures", "host", "num_nodes",
    "world_size", "start_utc", "duration_s", "steps_gained", "steps_lost", "hours_lost",
)  # fmt: skip
PLACES = ("attempt", "num_nodes", "world_size", "ranks_per_node", "hosts", "master")
ASKED = {"launch.nodes": "nodes_asked", "launch.gpus_per_node": "gpus_per_node_asked"}


def plan_table(runs: pd.DataFrame, attempts: pd.DataFrame) -> pd.DataFrame:
    """One row per run: where its newest launch placed its ranks, then what its config asks for."""
    newest = attempts.loc[~attempts["run"].duplicated(keep="last"), ["run", *PLACES]]
    table = runs[["run", "recipe", "status", "device"]].merge(newest, on="run", how="left")
    for key, name in ASKED.items():
        if key in runs:
            table[name] = runs[key].to_numpy()
    return table


def smoke_table(results_dir: Path) -> pd.DataFrame:
    """One row per topology and check, by name; a topology without a result has one with its launcher's last word."""
    rows: list[dict[str, Any]] = []
    directory = results_dir / "smoke"
    names = {path.stem for path in directory.glob("*.json")} | {path.parent.name for path in directory.glob("*/launch")}
    for name in sorted(names):
        document = _document(directory / f"{name}.json")
        checks = document.get("checks")
        if isinstance(checks, list) and checks:
            rows += [_check(name, document, check) for check in checks if isinstance(check, Mapping)]
        else:
            rows.append(_no_result(clean(name), directory / name / "launch"))
    columns = {name: pd.Series([row.get(name) for row in rows], dtype=kind) for name, kind in SMOKE_TYPES.items()}
    return pd.DataFrame(columns)


def _check(topology: str, document: Mapping[str, Any], check: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "topology": clean(topology),
        "check": text(check.get("check")),
        "result": "ok" if check.get("ok") is True else "failed",
        "found": text(check.get("text")),
        "problem": text(check.get("problem")),
        "duration_s": number(check.get("seconds")),
        **{key: text(document.get(key)) for key in ("run", "strategy", "backend", "device")},
        **{key: whole(document.get(key)) for key in ("num_nodes", "world_size")},
        "start_utc": utc(number(document.get("started"))),
    }


def _no_result(topology: str, launch_dir: Path) -> dict[str, Any]:
    attempts = sorted((path for path in launch_dir.glob("*/attempt.json") if path.parent.name.isdigit()),
                      key=lambda path: int(path.parent.name))  # fmt: skip
    facts = _document(attempts[-1]) if attempts else {}
    cause = text(facts.get("cause")) or text(facts.get("verdict"))
    return {"topology": topology, "check": "launch", "result": "failed" if facts.get("end") else None,
            "problem": cause, "start_utc": utc(number(facts.get("start")))}  # fmt: skip


def _document(path: Path) -> dict[str, Any]:
    """The object in a JSON file; empty where there is none, whatever the reason: the report says what is known."""
    try:
        document = json.loads(path.read_bytes().decode())
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def failures_table(runs: pd.DataFrame, attempts: pd.DataFrame) -> pd.DataFrame:
    """The attempts that failed or restarted in place, and failed runs of which no attempt says why; in table order."""
    status = pd.Series(runs["status"].to_numpy(dtype=object), index=runs["run"].to_numpy(dtype=object))
    going_on = attempts["verdict"].isna() & attempts["run"].map(status).eq("running")
    well = attempts["verdict"].isin(["finished", "again"]) | going_on
    bad = attempts.loc[attempts["num_failures"].gt(0).fillna(False) | ~well, list(FAILURE_COLUMNS)]
    silent = runs[(runs["status"] == "failed") & ~runs["run"].isin(set(bad["run"]))]
    more = pd.DataFrame({"run": silent["run"], "recipe": silent["recipe"], "cause": silent["notes"]})
    table = pd.concat([bad, more], ignore_index=True)
    table.insert(2, "run_is_now", table["run"].map(status))
    return table
