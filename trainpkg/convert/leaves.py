"""A YAML file as dotted keys, each with the line that it stands in. What keys mean is `corenet`'s business."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trainpkg.errors import UserError

MAX_SHOWN = 60


@dataclass(frozen=True)
class Leaf:
    """`key: value` as it stands in `line`; lists are values."""

    key: str
    value: Any
    line: int

    def __str__(self) -> str:
        shown = textwrap.shorten(repr(self.value), MAX_SHOWN, placeholder="...")
        return f"line {self.line}: {self.key} = {shown}"


def read(path: Path) -> dict[str, Leaf]:
    """All keys of a file that holds one mapping; of a key that stands twice the second, as YAML's readers do.

    Raises:
        UserError: no such file, no YAML, or no mapping.
    """
    try:
        text = path.read_text(encoding="utf-8")
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if not isinstance(root, yaml.MappingNode):
            raise UserError(f"{path}: expected `key: value` lines, as a config of CoreNet has them")
        # every anchor stands in the tree itself: a loader of its own per leaf finds all that the leaf refers to
        return {leaf.key: leaf for leaf in _walk(root, "")}
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: no valid YAML: {' '.join(str(error).split())}") from error


def _walk(node: yaml.MappingNode, prefix: str) -> Iterator[Leaf]:
    loader = yaml.SafeLoader("")
    loader.flatten_mapping(node)  # `<<`
    # of a key that stands twice the last counts, as a whole
    for key, value in {key.value: (key, value) for key, value in node.value}.values():
        name = f"{prefix}{key.value}"
        if isinstance(value, yaml.MappingNode) and value.value:
            yield from _walk(value, f"{name}.")
        else:
            yield Leaf(name, loader.construct_object(value, deep=True), key.start_mark.line + 1)
