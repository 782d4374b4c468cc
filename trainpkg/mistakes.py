"""Everything that is wrong in a config, collected so that all of it is told at once, as sentences for its author.

What counts as wrong is `config`'s and `sheet`'s business; here is how it is said, and the nearest valid name.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from trainpkg.errors import UserError
from trainpkg.schema import known_keys

MAX_TOLD = 100  # a mistake in a sweep may come up in each of its runs


@dataclass
class Problems:
    """All errors found so far, each once, in the order found."""

    found: dict[str, None] = field(default_factory=dict)

    def add(self, text: str) -> None:
        self.found[text] = None

    def add_all(self, error: ValidationError, sources: Mapping[str, str], default: str, model: type[BaseModel]) -> None:
        """Each error with the place its value came from."""
        for detail in error.errors(include_url=False):
            key = _dotted(detail, model)
            place = sources.get(key) or next((p for k, p in sources.items() if k.startswith(key + ".")), default)
            self.add(f"{place}: {_sentence(detail, key, model)}")

    def raise_if_any(self) -> None:
        if len(self.found) == 1:
            raise UserError(f"configuration: {next(iter(self.found))}")
        if self.found:
            told = list(self.found)[:MAX_TOLD]
            told += [f"and {len(self.found) - MAX_TOLD} more"] if len(self.found) > MAX_TOLD else []
            raise UserError("\n  ".join([f"{len(self.found)} errors in the configuration:", *told]))


def nearest(word: str, known: Iterable[str], what: str = "valid key") -> str:
    """`; nearest valid key: 'optim.lr'`, or nothing where none is near."""
    known = list(known)
    found = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    if not found and "." in word:  # the right leaf in another section is worth naming
        leaf = word.rsplit(".", 1)[1]
        found = [key for key in known if key.endswith("." + leaf)][:1]
    return f"; nearest {what}: {found[0]!r}" if found else ""


def without_unknown(tree: dict[str, Any], error: ValidationError, model: type[BaseModel]) -> dict[str, Any] | None:
    """The tree without its unknown keys, so that what else is wrong can be told with them.

    None where there are none, or where one of them may be a section misspelt: what is missing then is not known.
    """
    unknown = [_dotted(detail, model).split(".") for detail in error.errors() if detail["type"] == "extra_forbidden"]
    if any(difflib.get_close_matches(section, model.model_fields) for section, *below in unknown if not below):
        return None
    rest = copy.deepcopy(tree)
    for *above, leaf in unknown:
        place = rest
        for section in above:
            place = place.get(section, {})
        place.pop(leaf, None)
    return None if rest == tree else rest


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
        return f"{key} = {value!r}: unknown key{nearest(key, beside) or nearest(key, keys)}"
    if not key:
        return detail["msg"].removeprefix("Value error, ")
    if detail["type"].startswith("union_tag"):
        return f"{key}.name = {value.get('name') if isinstance(value, dict) else value!r}: {detail['msg']}"
    return f"{key} = {value!r}: {detail['msg']}"
