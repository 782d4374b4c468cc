"""Resolved configs of runs, read fast: thousands of runs share nearly all of their sections.

PyYAML takes 2 ms for a config.yaml. Here each distinct section of all files is parsed once, by PyYAML.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import yaml

from trainpkg.config.keys import FREE_TEXT
from trainpkg.tables.records import clean

# libyaml's parser where PyYAML was built with it: 10 times faster.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
OWN_KEYS = ("run", "recipe", "fingerprint")
_SECTIONS = re.compile(r"(?m)^(?=\w)")
# What may reach over sections: anchors and aliases, documents, directives, merges. Then the file is read as a whole.
_REACHES_OVER = re.compile(r"[&*\t%]|^(---|\.\.\.)|<<", re.MULTILINE)
MAX_SECTIONS = 100_000


class Configs:
    """Reads config.yaml files; remembers sections, so one reader should read many."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[str, Any, dict[str, Any]]] = {}

    def read(self, content: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
        """(run, recipe and fingerprint as they stand there; all other keys dotted and `plain`).

        Raises ValueError, RecursionError or yaml.YAMLError where it is no YAML mapping.
        """
        text = content.decode()
        first, *sections = _SECTIONS.split(text)
        if first or not sections or _REACHES_OVER.search(text):
            sections = [text]
        own: dict[str, Any] = {}
        keys: dict[str, Any] = {}
        for name, value, its in self._parsed(sections, text):
            if name in OWN_KEYS:
                own[name] = value
            keys.update(its)
        return own, keys

    def _parsed(self, sections: list[str], text: str) -> list[tuple[str, Any, dict[str, Any]]]:
        new = [section for section in sections if section not in self._known]
        if not new:
            return [self._known[section] for section in sections]
        tree = _mapping("".join(new))
        if len(tree) != len(new):  # a section that is no single key, or a key that stands twice
            return [_entry(name, value) for name, value in _mapping(text).items()]
        if len(self._known) > MAX_SECTIONS:
            self._known.clear()
            return self._parsed(sections, text)
        self._known.update(zip(new, (_entry(name, value) for name, value in tree.items()), strict=True))
        return [self._known[section] for section in sections]


def _mapping(text: str) -> dict[Any, Any]:
    tree = yaml.load(text, Loader=LOADER)
    if not isinstance(tree, dict):
        raise ValueError("no mapping")
    return tree


def _entry(name: Any, value: Any) -> tuple[str, Any, dict[str, Any]]:
    return str(name), value, {} if name in OWN_KEYS else plain(_flatten({name: value}))


def _flatten(tree: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted keys, as `Run.flat()` gives them: mappings of variables stay whole."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and name not in FREE_TEXT:
            flat.update(_flatten(value, f"{name}."))
        else:
            flat[name] = value
    return flat


def plain(config: Mapping[str, Any]) -> dict[str, Any]:
    """Values that fit into a table cell: lists and mappings as JSON, all else as it is."""
    found: dict[str, Any] = {}
    for key, value in config.items():
        if key in OWN_KEYS:
            continue
        simple = value is None or isinstance(value, bool | int | float | str)
        found[clean(key)] = value if simple else json.dumps(value, sort_keys=True, default=str)
    return found
