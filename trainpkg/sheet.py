"""Reads the workflow's config, the recipes and the sheet of runs, once, and reports everything wrong in them at once.

A run is its row of the sheet over its recipe over the sections of the workflow's config. This module knows where each
value came from; what the values mean is `config`'s business.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from trainpkg.config import Run, Workflow, flatten, parts
from trainpkg.config.keys import FREE_FORM, FREE_VALUES
from trainpkg.config.sweep import MAX_NAME
from trainpkg.errors import UserError
from trainpkg.mistakes import Problems, nearest
from trainpkg.recipes import Recipes, Row, Tree, read_yaml
from trainpkg.schema import known_keys

FREE = tuple(f"{name}." for name in FREE_VALUES)


@dataclass(frozen=True)
class Sheet:
    """All runs of a workflow, in the sheet's order."""

    workflow: Workflow
    runs: Runs

    @property
    def results_dir(self) -> Path:
        return Path(self.workflow.results_dir)

    def topologies(self) -> dict[str, str]:
        """Name of each distinct topology -> the first run that has it (its config is what the smoke test uses)."""
        found: dict[str, str] = {}
        for run in self.runs.values():
            found.setdefault(topology(run), run.run)
        return found

    def first_with(self, name: str) -> Run:
        """The first run of a topology; no later one is looked at. Raises UserError where there is none."""
        for run in self.runs.values():
            if topology(run) == name:
                return run
        raise UserError(f"{self.workflow.sheet}: no run has the topology {name!r}")

    def shared_jobs(self) -> dict[str, str]:
        """Run -> the Slurm job that it shares, for those with slurm.runs_per_job: in the sheet's order, alike in all
        that is asked of Slurm."""
        found: dict[str, str] = {}
        alike: dict[str, int] = {}
        for name, run in self.runs.items():
            if run.slurm.runs_per_job > 1:
                asks = (run.slurm, run.launch.nodes, run.launch.gpus_per_node, run.launch.device, run.evaluate.nodes)
                number = alike[repr(asks)] = alike.get(repr(asks), -1) + 1
                found[name] = f"{list(alike).index(repr(asks))}-{number // run.slurm.runs_per_job}"
        return found

    def run(self, name: str) -> Run:
        """The run of that name. Raises UserError naming the nearest one."""
        if name not in self.runs:
            raise UserError(f"{self.workflow.sheet}: no run {name!r}{nearest(name, self.runs, 'run')}")
        return self.runs[name]


def topology(run: Run) -> str:
    """What a smoke test proves: nodes x GPUs, GPU type, strategy, backend, and model, data and task unless the demo's.

    Two runs that share it share the test.
    """
    nodes = min(run.launch.nodes, run.smoke.max_nodes)
    gpus = "all" if run.launch.gpus_per_node is None else str(run.launch.gpus_per_node)
    device = run.launch.device if run.launch.device == "cpu" else run.slurm.gpu_type or run.launch.device
    strategy = "own" if run.own_program else run.strategy_for(2 if run.num_ranks is None else run.num_ranks)
    strategy += f"-sp{run.sequence_parallel}" if run.sequence_parallel > 1 else ""
    library = "" if run.launch.dist_backend == "auto" else f"-{run.launch.dist_backend}"
    own = "" if run.own_program else "".join(f"-{part}" for part in parts.named(run))
    return f"{nodes}x{gpus}-{device}-{strategy}-{run.launch.backend}{library}{own}"


def add_config_arguments(parser: argparse.ArgumentParser) -> None:
    """--config FILE or --config-json TEXT, as every subcommand that reads the sheet takes them."""
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--config", type=Path, default=Path("config/config.yaml"), help="default: config/config.yaml")
    source.add_argument(
        "--config-json", help="the content of the config file as JSON (how a workflow module passes it)"
    )


def config_of(args: argparse.Namespace) -> Path | Tree:
    """What `load` takes, from the parsed arguments."""
    if args.config_json is None:
        return Path(args.config)
    tree = json.loads(args.config_json)
    if not isinstance(tree, dict):
        raise UserError(f"--config-json: expected an object, found {type(tree).__name__}")
    return tree


def load(
    config: Path | Tree, lazily: bool = False, tried: Callable[[Iterable[Run]], Iterable[str]] = lambda _: ()
) -> Sheet:
    """Read everything that `config` (a file, or its content) names.

    Raises UserError listing all errors of all runs: file, row, key, value and the nearest valid key, and what `tried`
    says of the runs. `lazily`: a run's keys are checked when it is asked for, since a job that trains one of thousands
    has no use for the others.
    """
    problems = Problems()
    where = str(config) if isinstance(config, Path) else "config"
    tree = read_yaml(config, "config file") if isinstance(config, Path) else config
    try:
        workflow = Workflow.model_validate(tree)
    except ValidationError as error:
        problems.add_all(error, dict.fromkeys(flatten(tree), where), where, Workflow)
        workflow = Workflow.model_construct(
            **{k: tree[k] for k in ("results_dir", "sheet", "recipes") if isinstance(tree.get(k), str)}
        )
    recipes = Recipes(Path(workflow.recipes), {k: v for k, v in tree.items() if k in Run.model_fields}, where)
    runs = Runs(_expanded(Path(workflow.sheet), recipes, problems), recipes)
    if not lazily:
        for text in tried(runs.check(problems)):
            problems.add(text)
    problems.raise_if_any()
    return Sheet(workflow, runs)


class Runs(Mapping[str, Run]):
    """Runs by name, in the sheet's order, each made of its row when it is first asked for."""

    def __init__(self, rows: dict[str, Row], recipes: Recipes) -> None:
        self._rows, self._recipes = rows, recipes
        self._made: dict[str, Run] = {}

    def check(self, problems: Problems) -> Iterable[Run]:
        """Make all of them: those that can be made."""
        for row in self._rows.values():
            if (run := self._recipes.run(row, problems)) is not None:
                self._made[row.name] = run
        return self._made.values()

    def __getitem__(self, name: str) -> Run:
        if name not in self._made:
            problems = Problems()
            run = self._recipes.run(self._rows[name], problems)
            problems.raise_if_any()
            assert run is not None
            self._made[name] = run
        return self._made[name]

    def recipe(self, name: str) -> str:
        """The name of the run's recipe, as written down."""
        return self._rows[name].recipe

    def words(self, name: str) -> str:
        """A digest of all that is written down for a run, in config, recipe and row: equal words make an equal run."""
        return self._recipes.words(self._rows[name])

    def __contains__(self, name: object) -> bool:
        return name in self._rows

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


def _expanded(path: Path, recipes: Recipes, problems: Problems) -> dict[str, Row]:
    """All runs by name: a row as it is, or what the sweep of its recipe makes of it."""
    found: dict[str, Row] = {}
    places: dict[str, str] = {}
    for line, row in _rows(path, problems):
        name, recipe_name = row.pop("run", ""), row.pop("recipe", "")
        place = f"{path}:{line}: run {name!r}"
        recipe = recipes.get(recipe_name, place, problems)
        overrides = {key: _cell(key, value) for key, value in row.items()}
        sweep = recipe.sweep if recipe else None
        for key in set(sweep.keys if sweep else []) & set(overrides):
            problems.add(f"{place}: {key} = {row[key]!r}, but the sweep of recipe {recipe_name!r} varies it")
        swept = tuple(sweep.keys if sweep else ())
        for full_name, values in sweep.expand(name) if sweep else [(name, {})]:
            if full_name in places:
                before = places[full_name]
                problems.add(
                    f"{place}: this name stands already in {before}; names of runs are directories"
                    if full_name == name
                    else f"{place}: its sweep's {full_name!r} stands already in {before}; names of runs are directories"
                )
                continue
            if len(full_name) > MAX_NAME:
                problems.add(f"{place}: its sweep's {full_name!r} is too long for the name of a directory")
            places[full_name] = f"line {line}"
            if recipe is not None:
                found[full_name] = Row(full_name, recipe_name, {**overrides, **values}, place, swept)
    if not found and not problems.found:
        problems.add(f"{path}: no runs; a row holds run, recipe and any overrides, separated by tabs")
    return found


def _rows(path: Path, problems: Problems) -> Iterator[tuple[int, dict[str, str]]]:
    """Line number and non-empty cells of each row. Lines that start with # are comments."""
    if not path.is_file():
        problems.add(f"sheet = {str(path)!r}: there is no such file (the sheet of runs; see config/README.md)")
        return
    with path.open(encoding="utf-8-sig", newline="") as lines:
        reader = csv.reader(lines, delimiter="\t")
        header: list[str] = []
        for cells in reader:
            cells = [cell.strip() for cell in cells]
            if not any(cells) or cells[0].startswith("#"):
                continue
            if not header:
                header = _known_columns(cells, f"{path}:{reader.line_num}", problems)
                continue
            if any(cells[len(header) :]):
                problems.add(f"{path}:{reader.line_num}: {len(cells)} cells under {len(header)} columns; tabs separate")
                continue
            yield reader.line_num, {key: cell for key, cell in zip(header, cells, strict=False) if key and cell}


def _known_columns(header: list[str], place: str, problems: Problems) -> list[str]:
    """The header with unknown names emptied, so that each is reported once and not in every row."""
    keys = known_keys(Run)
    for column in ("run", "recipe"):
        if column not in header:
            problems.add(f"{place}: the column {column!r} is missing; columns are {header}, separated by tabs")
    free = tuple(f"{name}." for name in FREE_FORM)
    known = [column if column in keys or column.startswith(free) else "" for column in header]
    for index, column in enumerate(header):
        if column and column in header[:index]:
            problems.add(f"{place}: the column {column!r} stands twice")
        elif column and not known[index]:
            problems.add(f"{place}: column {column!r}: unknown key{nearest(column, keys)}")
    return known


def _cell(key: str, text: str) -> Any:
    """Lists, mappings and null of a cell are YAML, and so is all that is for the user's own code; all else stays text,
    which the key's own type reads."""
    free = key.startswith(FREE)
    if not free and text[0] not in "[{" and text not in ("null", "~"):
        return text
    try:
        value = yaml.safe_load(text)
        return float(value) if free and isinstance(value, str) else value  # 1e-4 is text to YAML
    except (yaml.YAMLError, ValueError):
        return text
