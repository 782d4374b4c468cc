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
from trainpkg.tables.files.records import clean

# libyaml's parser where PyYAML was built with it: 10 times faster.
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
OWN_KEYS = ("run", "recipe", "fingerprint")
_NEXT_SECTION = re.compile(r"\n(?=\w)")
# What may reach over sections: anchors and aliases, documents, directives, merges. Then the file is read as a whole.
_REACH_OVER = ("&", "*", "\t", "%", "\n---", "\n...", "<<")
# Words of each run's own that YAML, too, takes as they stand: its numbers have no letters but after 0b and 0x (and in
# exponents, behind a dot).
_OWN = re.compile(
    rf"({'|'.join(OWN_KEYS)}): ((?!0[bBxX]|(?i:yes|no|on|off|true|false|null)$)[0-9]*[A-Za-z][\w.-]*)\n", re.ASCII
)
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
        *parts, last = _NEXT_SECTION.split(text)
        sections = [*(f"{part}\n" for part in parts), last]
        if not re.match(r"\w", text) or any(sign in text for sign in _REACH_OVER):
            sections = [text]
        own: dict[str, Any] = {}
        keys: dict[str, Any] = {}
        for name, value, its in self._parsed(sections, text):
            if name in OWN_KEYS:
                own[name] = value
            keys.update(its)
        return own, keys

    def _parsed(self, sections: list[str], text: str) -> list[tuple[str, Any, dict[str, Any]]]:
        entries = [self._known.get(section) or _own_entry(section) for section in sections]
        new = [section for section, entry in zip(sections, entries, strict=True) if entry is None]
        if not new:
            return [entry for entry in entries if entry is not None]
        tree = _mapping("".join(new))
        if len(tree) != len(new):  # a section that is no single key, or a key that stands twice
            return [_entry(name, value) for name, value in _mapping(text).items()]
        if len(self._known) > MAX_SECTIONS:
            self._known.clear()
        self._known.update(zip(new, (_entry(name, value) for name, value in tree.items()), strict=True))
        return self._parsed(sections, text)


def _mapping(text: str) -> dict[Any, Any]:
    tree = yaml.load(text, Loader=LOADER)
    if not isinstance(tree, dict):
        raise ValueError("no mapping")
    return tree


def _own_entry(section: str) -> tuple[str, Any, dict[str, Any]] | None:
    """Of a line that is another one in every run; None where PyYAML is to say what it means."""
    found = _OWN.fullmatch(section)
    return None if found is None else (found[1], found[2], {})


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
