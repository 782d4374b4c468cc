"""Read the files of runs into plain values: the only module of the tables that opens them.

Files that are absent, empty, torn, no JSON or in another encoding are described in `notes`, never fatal. What the
values mean (is the run finished, what did it cost) is decided in `runs`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from trainpkg.tables.files import bulk
from trainpkg.tables.files.configs import Configs
from trainpkg.tables.files.listing import Listing
from trainpkg.tables.files.records import Metrics, clean, number

# Runs whose records are parsed together: enough for Arrow to be fast, and a few MB.
TOGETHER = 100


@dataclass(frozen=True)
class Expected:
    """What the sheet says of a run. `fingerprint` None accepts any directory.

    `config` gives dotted keys; it is asked only where the run's directory does not say what was run.
    """

    run: str
    recipe: str
    fingerprint: str | None
    config: Callable[[], Mapping[str, Any]] = dict
    in_sheet: bool = True
    words: str = ""
    """Digest of all that is written down for it; empty where nobody says."""


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
    """All that the files of one run say. `config` is the run's own config.yaml, or the sheet's where there is none.

    `holds` is the fingerprint of what lies there, None where nothing says it.
    """

    run: str
    recipe: str
    in_sheet: bool
    config: Mapping[str, Any]
    has_own_config: bool = False
    holds: str | None = None
    train: Mapping[str, Any] | None = None
    evaluation: Mapping[str, Any] | None = None
    attempts: tuple[Attempt, ...] = ()
    lock: Lock | None = None
    metrics: Metrics = field(default_factory=Metrics)
    notes: tuple[str, ...] = ()


def absent(expected: Expected, *notes: str, holds: str | None = None) -> RunFiles:
    """A run of which nothing is there: whatever lies in its directory is not its own."""
    config = {key: value for key, value in expected.config().items() if key not in ("run", "recipe", "fingerprint")}
    plain = {key: _plain(value) for key, value in config.items()}
    return RunFiles(clean(expected.run), expected.recipe, expected.in_sheet, plain, holds=holds, notes=notes)


def _plain(value: Any) -> Any:
    simple = value is None or isinstance(value, bool | int | float | str)
    return value if simple else json.dumps(value, sort_keys=True, default=str)


def read_runs(jobs: Sequence[tuple[Expected, Listing]]) -> list[RunFiles]:
    """Read the runs whose directories were listed, in the order given."""
    configs = Configs()
    found: list[RunFiles] = []
    for start in range(0, len(jobs), TOGETHER):
        some = [_read_run(expected, listing, configs) for expected, listing in jobs[start : start + TOGETHER]]
        metrics = bulk.parse_all([content for _, content in some if content is not None])
        parsed = iter(metrics)
        for one, content in some:
            its = next(parsed) if content is not None else Metrics()
            found.append(replace(one, metrics=its, notes=(*one.notes, *its.notes)))
    return found


def _read_run(expected: Expected, listing: Listing, configs: Configs) -> tuple[RunFiles, bytes | None]:
    """All but the records, and the bytes of these."""
    files = _Files(listing)
    # Snakemake deletes outputs before it runs a rule anew; the copy beside them keeps what was finished.
    train = files.json("train.json") or files.json("finished.json")
    own, config = files.config(configs)
    holds = (train or {}).get("fingerprint") or own.get("fingerprint")
    if expected.fingerprint is not None and holds is not None and holds != expected.fingerprint:
        # Its numbers belong to another run: none of them may stand in this row.
        why = f"directory holds another fingerprint: {holds}, not {expected.fingerprint}"
        return absent(expected, why, holds=str(holds)), None
    evaluation = files.json("evaluation.json")
    if evaluation is not None and holds is not None and evaluation.get("fingerprint", holds) != holds:
        files.notes.append("evaluation.json is of another fingerprint")
        evaluation = None
    content = files.content("metrics.jsonl")
    one = RunFiles(
        run=clean(expected.run),
        recipe=expected.recipe or clean(str(own.get("recipe") or (train or {}).get("recipe") or "")),
        in_sheet=expected.in_sheet,
        # Execution keys may have changed in the sheet since: numbers stand beside the keys they were measured with.
        config=config or absent(expected).config,
        has_own_config=bool(config),
        holds=None if holds is None else str(holds),
        train=train,
        evaluation=evaluation,
        attempts=tuple(files.attempt(number) for number in listing.generations),
        lock=files.lock(),
        notes=tuple(files.notes),
    )
    return one, content


class _Files:
    """The files of one run, with what is wrong with them."""

    def __init__(self, listing: Listing) -> None:
        self.listing = listing
        self.notes: list[str] = []

    def content(self, name: str, about: str = "") -> bytes | None:
        """None where the file is absent, or unreadable (then with a note)."""
        if name not in self.listing.files:
            return None
        try:
            # Hundreds of thousands of them: pathlib and a buffer would double the time.
            with open(f"{self.listing.path}/{name}", "rb", buffering=0) as file:  # noqa: PTH123
                return file.read()
        except FileNotFoundError:
            return None
        except OSError as error:
            self._unreadable(name, about, type(error).__name__)
            return None

    def json(self, name: str, about: str = "") -> dict[str, Any] | None:
        """The object in a file; None where it is absent, or unreadable (then with a note)."""
        content = self.content(name, about)
        if content is None:
            return None
        try:
            value = json.loads(content.decode())
        except (ValueError, RecursionError) as error:
            self._unreadable(name, about, type(error).__name__)
            return None
        if not isinstance(value, dict):
            self._unreadable(name, about, "no object")
            return None
        return value

    def config(self, configs: Configs) -> tuple[dict[str, Any], dict[str, Any]]:
        content = self.content("config.yaml")
        if content is None:
            return {}, {}
        try:
            return configs.read(content)
        except (ValueError, RecursionError, yaml.YAMLError) as error:
            why = "no mapping" if str(error) == "no mapping" else type(error).__name__
            self._unreadable("config.yaml", "", why)
            return {}, {}

    def attempt(self, number: int) -> Attempt:
        about, folder = f"attempt {number}: ", f"launch/{number}"
        facts = self.json(f"{folder}/attempt.json", about) or {}
        generations = self.listing.generations[number]
        plan: dict[str, Any] = {}
        failures = []
        for generation in generations:
            failure = self.json(f"{folder}/{generation}/failure.json", about)
            if failure is not None:
                failures.append({"generation": generation, **failure})
            # A generation that failed before its plan was made was still meant to have the ranks of the one before.
            plan = self.json(f"{folder}/{generation}/plan.json", about) or plan
        return Attempt(number, facts, plan, len(generations), tuple(failures))

    def lock(self) -> Lock | None:
        if "lock" not in self.listing.files:
            return None
        mtime_unix_s = self.listing.files["lock"][1] / 1e9
        quiet = _Files(self.listing)  # a lock says nothing once its run has finished
        content = quiet.json("lock") or {}
        return Lock(beat_unix_s=number(content.get("beat_unix_s")), mtime_unix_s=mtime_unix_s)

    def _unreadable(self, name: str, about: str, why: str) -> None:
        self.notes.append(f"{about}{Path(name).name} is unreadable ({why})")
