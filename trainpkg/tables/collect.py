"""Read the directories of runs into plain values: the only module of the tables that opens files to read.

Files that are absent, empty, torn, no JSON or in another encoding are described in `notes`, never fatal. What the
values mean (is the run finished, what did it cost) is decided in `runs`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from trainpkg.config.keys import FREE_FORM
from trainpkg.tables import records
from trainpkg.tables.records import Metrics, clean

# libyaml's parser where PyYAML was built with it: 10 times faster, which counts with thousands of runs.
YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True)
class Expected:
    """What the sheet says of a run; `config` has dotted keys, `fingerprint` None accepts any directory."""

    run: str
    recipe: str
    fingerprint: str | None
    config: Mapping[str, Any]


@dataclass(frozen=True)
class Attempt:
    """One launch: attempt.json, the newest generation's plan.json, and the failure.json of every generation."""

    number: int
    facts: Mapping[str, Any] = field(default_factory=dict)
    plan: Mapping[str, Any] = field(default_factory=dict)
    num_generations: int = 0
    failures: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True)
class Lock:
    """The lock of a run's directory. `beat_unix_s` is the holder's clock, `mtime_unix_s` the file system's."""

    beat_unix_s: float
    mtime_unix_s: float


@dataclass(frozen=True)
class RunFiles:
    """All that the files of one run say. `config` is the run's own config.yaml, or the sheet's where there is none."""

    run: str
    recipe: str
    in_sheet: bool
    exists: bool
    config: Mapping[str, Any]
    train: Mapping[str, Any] | None = None
    evaluation: Mapping[str, Any] | None = None
    attempts: tuple[Attempt, ...] = ()
    lock: Lock | None = None
    metrics: Metrics = field(default_factory=Metrics)
    notes: tuple[str, ...] = ()


def collect(results_dir: Path, expected: Sequence[Expected]) -> list[RunFiles]:
    """All runs in sheet order, then directories that the sheet does not name, by name.

    Names with a leading dot (`.old`) are no runs.
    """
    runs_dir = results_dir / "runs"
    named = {one.run for one in expected}
    try:
        with os.scandir(runs_dir) as entries:
            present = sorted(entry.name for entry in entries if entry.is_dir() and not entry.name.startswith("."))
    except (FileNotFoundError, NotADirectoryError):
        present = []
    found = [_read_run(runs_dir / one.run, one, in_sheet=True) for one in expected]
    for name in present:
        if name not in named:
            found.append(_read_run(runs_dir / name, Expected(name, "", None, {}), in_sheet=False))
    return found


def _read_run(path: Path, expected: Expected, in_sheet: bool) -> RunFiles:
    nothing = RunFiles(expected.run, expected.recipe, in_sheet, False, _plain(expected.config))
    if not os.path.isdir(path):  # noqa: PTH112  (Path.is_dir raises where a parent may not be searched)
        return replace(nothing, notes=("no directory but a file",)) if os.path.lexists(path) else nothing
    notes: list[str] = []
    # Snakemake deletes outputs before it runs a rule anew; the copy beside them keeps what was finished.
    train = _read_json(path / "train.json", notes) or _read_json(path / "finished.json", notes)
    own = _read_config(path / "config.yaml", notes)
    holds = (train or {}).get("fingerprint") or own.get("fingerprint")
    if expected.fingerprint is not None and holds is not None and holds != expected.fingerprint:
        # Its numbers belong to another run: none of them may stand in this row.
        return replace(nothing, notes=(f"directory holds another fingerprint: {holds}, not {expected.fingerprint}",))
    evaluation = _read_json(path / "evaluation.json", notes)
    if evaluation is not None and holds is not None and evaluation.get("fingerprint", holds) != holds:
        notes.append("evaluation.json is of another fingerprint")
        evaluation = None
    metrics = _read_metrics(path / "metrics.jsonl", notes)
    return RunFiles(
        run=clean(expected.run),
        recipe=expected.recipe or clean(str(own.get("recipe") or (train or {}).get("recipe") or "")),
        in_sheet=in_sheet,
        exists=True,
        # Execution keys may have changed in the sheet since: numbers stand beside the keys they were measured with.
        config={**_plain(expected.config), **_plain(_flatten(own))},
        train=train,
        evaluation=evaluation,
        attempts=_read_attempts(path / "launch", notes),
        lock=_read_lock(path / "lock"),
        metrics=metrics,
        notes=(*notes, *metrics.notes),
    )


def _read_json(path: Path, notes: list[str]) -> dict[str, Any] | None:
    """The object in a file; None where the file is absent, or unreadable (then with a note)."""
    try:
        value = json.loads(path.read_bytes().decode())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        notes.append(f"{path.name} is unreadable ({type(error).__name__})")
        return None
    if not isinstance(value, dict):
        notes.append(f"{path.name} is unreadable (no object)")
        return None
    return value


def _read_config(path: Path, notes: list[str]) -> dict[str, Any]:
    try:
        value = yaml.load(path.read_bytes(), Loader=YAML_LOADER)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        notes.append(f"{path.name} is unreadable ({type(error).__name__})")
        return {}
    if not isinstance(value, dict):
        notes.append(f"{path.name} is unreadable (no mapping)")
        return {}
    return value


def _flatten(tree: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted keys, as `Run.flat()` gives them: free-form mappings stay whole."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and name not in FREE_FORM:
            flat.update(_flatten(value, f"{name}."))
        else:
            flat[name] = value
    return flat


def _plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """Values that fit into a table cell: lists and mappings as JSON, all else as it is."""
    plain: dict[str, Any] = {}
    for key, value in config.items():
        if key in ("run", "recipe", "fingerprint"):
            continue
        simple = value is None or isinstance(value, bool | int | float | str)
        plain[clean(key)] = value if simple else json.dumps(value, sort_keys=True, default=str)
    return plain


def _read_metrics(path: Path, notes: list[str]) -> Metrics:
    try:
        return records.parse(path.read_bytes())
    except FileNotFoundError:
        return Metrics()
    except OSError as error:
        notes.append(f"{path.name} is unreadable ({type(error).__name__})")
        return Metrics()


def _numbered(path: Path) -> list[int]:
    """Names of a directory's entries that are whole numbers, in their order."""
    try:
        names = [entry.name for entry in path.iterdir()]
    except OSError:
        return []
    return sorted(int(name) for name in names if name.isascii() and name.isdigit())


def _read_attempts(launch_dir: Path, notes: list[str]) -> tuple[Attempt, ...]:
    return tuple(_read_attempt(launch_dir, number, notes) for number in _numbered(launch_dir))


def _read_attempt(launch_dir: Path, number: int, notes: list[str]) -> Attempt:
    path = launch_dir / str(number)
    found: list[str] = []
    facts = _read_json(path / "attempt.json", found) or {}
    generations = _numbered(path)
    plan: dict[str, Any] = {}
    failures = []
    for generation in generations:
        failure = _read_json(path / str(generation) / "failure.json", found)
        if failure is not None:
            failures.append({"generation": generation, **failure})
        # A generation that failed before its plan was made was still meant to have the ranks of the one before.
        plan = _read_json(path / str(generation) / "plan.json", found) or plan
    notes.extend(f"attempt {number}: {note}" for note in found)
    return Attempt(number, facts, plan, len(generations), tuple(failures))


def _read_lock(path: Path) -> Lock | None:
    try:
        mtime_unix_s = path.stat().st_mtime
    except OSError:
        return None
    content = _read_json(path, []) or {}
    return Lock(beat_unix_s=records.number(content.get("beat_unix_s")), mtime_unix_s=mtime_unix_s)
