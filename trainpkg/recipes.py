"""Recipes, each read once, and the runs made of them: a row over its recipe over the sections of the workflow's config.

Where each value came from is known here, for the sentence about a wrong one; what values mean is `config`'s business,
and the sheet is `sheet`'s.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from trainpkg.config import Run, flatten, starts
from trainpkg.config.keys import FREE_VALUES
from trainpkg.config.sweep import Sweep
from trainpkg.errors import UserError
from trainpkg.mistakes import Problems, nearest, without_unknown
from trainpkg.schema import known_keys

Tree = dict[str, Any]
ENCODER = json.JSONEncoder(sort_keys=True, default=str)


@dataclass(frozen=True)
class Row:
    """A run as it is written down: `overrides` are what its row, and its recipe's sweep, say over the recipe."""

    name: str
    recipe: str
    overrides: Tree
    place: str
    swept: tuple[str, ...] = ()


@dataclass(frozen=True)
class Recipe:
    """A recipe over the config's sections. `parts`: sections as checked once, where they are whole without a row."""

    path: Path
    own: Tree
    merged: Tree
    parts: Tree
    sweep: Sweep | None

    @cached_property
    def words(self) -> str:
        """A digest of all that it says."""
        return _digest(self.merged)


def _digest(said: object) -> str:
    return hashlib.blake2b(ENCODER.encode(said).encode(), digest_size=12).hexdigest()


class Recipes:
    """The recipes, each read once, and the runs made of them."""

    def __init__(self, folder: Path, sections: Tree, config: str) -> None:
        self._folder, self._sections, self._config = folder, sections, config
        self._read: dict[str, Recipe | None] = {}

    def get(self, name: str, place: str, problems: Problems) -> Recipe | None:
        """None, and a problem once, where there is none; `place` is the row that names it."""
        if name not in self._read:
            self._read[name] = self._recipe(name, place, problems)
        return self._read[name]

    def _recipe(self, name: str, place: str, problems: Problems) -> Recipe | None:
        path = self._folder / f"{name}.yaml"
        own = _read_recipe(path, place, problems)
        if own is None:
            return None
        own, sweep = dict(own), None
        if "sweep" in own:
            sweep = _sweep(own.pop("sweep"), path, problems)
            if sweep is None:
                return None
        merged = _merge(self._sections, own)
        try:
            # Runs share what no row changes: thousands of them are then quick to check, and small.
            whole = Run.model_validate({**merged, "run": "any", "recipe": name})
            parts = {key: getattr(whole, key) for key in merged if key in Run.model_fields}
        except ValidationError:
            parts = {}  # a row may give what is missing, or put right what is wrong
        return Recipe(path, own, merged, parts, sweep)

    def words(self, row: Row) -> str:
        """A digest of what a row, its recipe and the config say."""
        recipe = self._read[row.recipe]
        assert recipe is not None, "the row was read by way of its recipe"
        return _digest([recipe.words, row.overrides])

    def run(self, row: Row, problems: Problems) -> Run | None:
        """The run of a row; where keys are wrong problems, and None or what the others make."""
        recipe = self.get(row.recipe, row.place, problems)
        assert recipe is not None, "the row was read by way of its recipe"
        changes = _nest(row.overrides)
        merged = _merge(recipe.merged, changes)
        tree = {**merged, **{key: part for key, part in recipe.parts.items() if key not in changes}}
        run = self._validated({**tree, "run": row.name, "recipe": row.recipe}, row, recipe, problems)
        if run is not None and run.own_program:
            sources = self._sources(row, recipe)
            for key in starts.unread(run, [*flatten(recipe.own), *row.overrides]):
                problems.add(f"{sources[key]}: {key} is given, but {starts.NOT_READ}")
        return run

    def _validated(self, tree: Tree, row: Row, recipe: Recipe, problems: Problems) -> Run | None:
        try:
            return Run.model_validate(tree)
        except ValidationError as error:
            problems.add_all(error, self._sources(row, recipe), str(recipe.path), Run)
            rest = without_unknown(tree, error, Run)
            return None if rest is None else self._validated(rest, row, recipe, problems)

    def _sources(self, row: Row, recipe: Recipe) -> dict[str, str]:
        """Dotted key -> the place that its value comes from."""
        sources = dict.fromkeys(flatten(self._sections), self._config)
        sources |= dict.fromkeys(flatten(recipe.own), str(recipe.path))
        sources |= dict.fromkeys([*row.overrides, "run", "recipe"], row.place)
        return sources | dict.fromkeys(row.swept, f"{recipe.path}: sweep")


def _sweep(tree: Any, path: Path, problems: Problems) -> Sweep | None:
    try:
        sweep = Sweep.model_validate(tree)
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            key = ".".join(["sweep", *map(str, detail["loc"])])
            problems.add(f"{path}: {key} = {detail['input']!r}: {detail['msg'].removeprefix('Value error, ')}")
        return None
    free = tuple(f"{name}." for name in FREE_VALUES)
    known = {key for key in sweep.keys if key.startswith(free)} | known_keys(Run).keys() - {"run", "recipe"}
    unknown = [key for key in sweep.keys if key not in known]
    for key in unknown:
        problems.add(f"{path}: sweep: {key!r} is no key that a run can vary{nearest(key, known_keys(Run))}")
    return None if unknown else sweep


def _read_recipe(path: Path, place: str, problems: Problems) -> Tree | None:
    known = sorted(p.stem for p in path.parent.glob("*.yaml"))
    if path.name == ".yaml":
        problems.add(f"{place}: the cell under 'recipe' is empty; recipes are {known}")
        return None
    if not path.is_file():
        problems.add(f"{place}: recipe = {path.stem!r}: there is no {path}{nearest(path.stem, known, 'recipe')}")
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
