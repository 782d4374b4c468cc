"""Reads the workflow's config, the recipes and the sheet of runs, once, and reports everything wrong in them at once.

A run is its row of the sheet over its recipe over the sections of the workflow's config. This module knows where each
value came from; what the values mean is `config`'s business.
"""

from __future__ import annotations

import argparse
import csv
import difflib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from trainpkg.config import Run, Workflow, flatten, starts
from trainpkg.config.keys import FREE_FORM
from trainpkg.errors import UserError
from trainpkg.schema import known_keys

Tree = dict[str, Any]


@dataclass(frozen=True)
class Sheet:
    """All runs of a workflow, in the sheet's order."""

    workflow: Workflow
    runs: dict[str, Run]

    @property
    def results_dir(self) -> Path:
        return Path(self.workflow.results_dir)

    def topologies(self) -> dict[str, str]:
        """Name of each distinct topology -> the first run that has it (its config is what the smoke test uses)."""
        found: dict[str, str] = {}
        for run in self.runs.values():
            found.setdefault(topology(run), run.run)
        return found

    def run(self, name: str) -> Run:
        """The run of that name. Raises UserError naming the nearest one."""
        if name not in self.runs:
            raise UserError(f"{self.workflow.sheet}: no run {name!r}{_nearest(name, self.runs, 'run')}")
        return self.runs[name]


def topology(run: Run) -> str:
    """What a smoke test proves: nodes x GPUs, GPU type, strategy, backend. Two runs that share it share the test."""
    nodes = min(run.launch.nodes, run.smoke.max_nodes)
    gpus = "all" if run.launch.gpus_per_node is None else str(run.launch.gpus_per_node)
    device = run.launch.device if run.launch.device == "cpu" else run.slurm.gpu_type or run.launch.device
    strategy = "own" if run.own_program else run.strategy_for(2 if run.num_ranks is None else run.num_ranks)
    strategy += f"-sp{run.sequence_parallel}" if run.sequence_parallel > 1 else ""
    library = "" if run.launch.dist_backend == "auto" else f"-{run.launch.dist_backend}"
    return f"{nodes}x{gpus}-{device}-{strategy}-{run.launch.backend}{library}"


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


def load(config: Path | Tree) -> Sheet:
    """Read everything that `config` (a file, or its content) names.

    Raises UserError listing all errors of all runs: file, row, key, value and the nearest valid key.
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
    sections = {name: value for name, value in tree.items() if name in Run.model_fields}
    runs = _read_runs(workflow, where, sections, problems)
    problems.raise_if_any()
    return Sheet(workflow, runs)


def _read_runs(workflow: Workflow, where: str, sections: Tree, problems: Problems) -> dict[str, Run]:
    recipes: dict[str, Tree | None] = {}
    runs: dict[str, Run] = {}
    first_line: dict[str, int] = {}
    for line, row in _rows(Path(workflow.sheet), problems):
        name, recipe = row.pop("run", ""), row.pop("recipe", "")
        place = f"{workflow.sheet}:{line}: run {name!r}"
        if name in first_line:
            problems.add(f"{place}: this name stands already in line {first_line[name]}; names of runs are directories")
            continue
        first_line[name] = line
        path = Path(workflow.recipes) / f"{recipe}.yaml"
        if recipe not in recipes:
            recipes[recipe] = _read_recipe(path, place, problems)
        base = recipes[recipe]
        if base is None:
            continue
        overrides = {key: _cell(value) for key, value in row.items()}
        sources = dict.fromkeys(flatten(sections), where)
        sources |= {key: str(path) for key in flatten(base)}
        sources |= dict.fromkeys(overrides, place)
        merged = _merge(_merge(sections, base), _nest(overrides))
        try:
            runs[name] = Run.model_validate({**merged, "run": name, "recipe": recipe})
            for key in starts.unread(runs[name], [*flatten(base), *overrides]):
                problems.add(f"{sources[key]}: {key} is given, but {starts.NOT_READ}")
        except ValidationError as error:
            problems.add_all(error, sources | {"run": place, "recipe": place}, str(path), Run)
    if not runs and not problems.found:
        problems.add(f"{workflow.sheet}: no runs; a row holds run, recipe and any overrides, separated by tabs")
    return runs


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
            problems.add(f"{place}: column {column!r}: unknown key{_nearest(column, keys)}")
    return known


def _read_recipe(path: Path, place: str, problems: Problems) -> Tree | None:
    known = sorted(p.stem for p in path.parent.glob("*.yaml"))
    if path.name == ".yaml":
        problems.add(f"{place}: the cell under 'recipe' is empty; recipes are {known}")
        return None
    if not path.is_file():
        problems.add(f"{place}: recipe = {path.stem!r}: there is no {path}{_nearest(path.stem, known, 'recipe')}")
        return None
    try:
        return read_yaml(path, "recipe")
    except UserError as error:
        problems.add(str(error))
        return None


class UniqueKeys(yaml.SafeLoader):
    """YAML's safe types; a key that stands twice is an error, where PyYAML would silently take the second."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value]
        twice = {key for key in keys if keys.count(key) > 1 and key != "<<"}
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"the key {min(twice)!r} stands twice", node.start_mark)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path, what: str) -> Tree:
    """A YAML file that holds one mapping. Raises UserError naming the file and line."""
    try:
        tree = yaml.load(path.read_text(encoding="utf-8"), Loader=UniqueKeys)
    except OSError as error:
        raise UserError(f"{what} {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{what} {path}: no valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(tree, dict):
        raise UserError(f"{what} {path}: expected `key: value` lines, found {type(tree).__name__}")
    return tree


def _cell(text: str) -> Any:
    """Lists, mappings and null of a cell are YAML; all else stays text, which the key's own type reads."""
    if text[0] in "[{" or text in ("null", "~"):
        try:
            return yaml.safe_load(text)
        except yaml.YAMLError:
            return text
    return text


def _nest(flat: Tree) -> Tree:
    tree: Tree = {}
    for key, value in flat.items():
        *sections, leaf = key.split(".")
        inner = tree
        for section in sections:
            inner = inner.setdefault(section, {})
            if not isinstance(inner, dict):
                break
        else:
            inner[leaf] = value
    return tree


def _merge(low: Tree, high: Tree) -> Tree:
    merged = dict(low)
    for key, value in high.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def _nearest(word: str, known: Any, what: str = "valid key") -> str:
    found = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    if not found and "." in word:  # the right leaf in another section is worth naming
        leaf = word.rsplit(".", 1)[1]
        found = [key for key in known if key.endswith("." + leaf)][:1]
    return f"; nearest {what}: {found[0]!r}" if found else ""


@dataclass
class Problems:
    """All errors found so far, each once, in the order found."""

    found: dict[str, None] = field(default_factory=dict)

    def add(self, text: str) -> None:
        self.found[text] = None

    def add_all(self, error: ValidationError, sources: dict[str, str], default: str, model: type[BaseModel]) -> None:
        """Each error with the place its value came from."""
        for detail in error.errors(include_url=False):
            key = _dotted(detail, model)
            place = sources.get(key) or next((p for k, p in sources.items() if k.startswith(key + ".")), default)
            self.add(f"{place}: {_sentence(detail, key, model)}")

    def raise_if_any(self) -> None:
        if len(self.found) == 1:
            raise UserError(f"configuration: {next(iter(self.found))}")
        if self.found:
            raise UserError("\n  ".join([f"{len(self.found)} errors in the configuration:", *self.found]))


def _dotted(detail: ErrorDetails, model: type[BaseModel]) -> str:
    """pydantic's location without the tags of unions (`model.conv.width` is `model.width` to the user)."""
    loc = [str(part) for part in detail["loc"]]
    if len(loc) > 1 and loc[0] in ("model", "data") and f"{loc[0]}.{loc[1]}" not in known_keys(model):
        del loc[1]
    return ".".join(loc)


def _sentence(detail: ErrorDetails, key: str, model: type[BaseModel]) -> str:
    value, keys = detail["input"], known_keys(model)
    if detail["type"] == "missing":
        about = keys[key].description if key in keys else model.model_fields[key].description
        return f"{key} is missing: {about}"
    if detail["type"] == "extra_forbidden":
        above = key.rpartition(".")[0]
        siblings = {k.removeprefix(above + ".").split(".")[0] for k in keys if k.startswith(above)}
        beside = {f"{above}.{sibling}".lstrip(".") for sibling in siblings}
        return f"{key} = {value!r}: unknown key{_nearest(key, beside) or _nearest(key, keys)}"
    if not key:
        return detail["msg"].removeprefix("Value error, ")
    if detail["type"].startswith("union_tag"):
        return f"{key}.name = {value.get('name') if isinstance(value, dict) else value!r}: {detail['msg']}"
    return f"{key} = {value!r}: {detail['msg']}"
