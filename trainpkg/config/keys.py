"""What a key and a section of the config are: closed, frozen, each key marked as identity or execution."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field

S = TypeVar("S", bound="Section")
R = TypeVar("R")
IDENTITY = {"identity": True}
EXECUTION = {"identity": False}
# mappings whose keys are the user's: of text, and of whatever their own code takes
FREE_TEXT = ("launch.env", "launch.env_prepend")
FREE_VALUES = ("model.kwargs", "data.kwargs", "data.transform_kwargs", "task_kwargs")
FREE_FORM = (*FREE_TEXT, *FREE_VALUES)


def identity(default: Any = ..., description: str = "", **limits: Any) -> Any:
    """A key whose change makes another run."""
    return Field(default, description=description, json_schema_extra=dict(IDENTITY), **limits)


def later(default: Any, description: str = "", **limits: Any) -> Any:
    """An identity key that is younger than some runs: it counts where it is not its default."""
    return Field(default, description=description, json_schema_extra={**IDENTITY, "later": True}, **limits)


def execution(default: Any = ..., description: str = "", **limits: Any) -> Any:
    """A key that may change from attempt to attempt of one run."""
    return Field(default, description=description, json_schema_extra=dict(EXECUTION), **limits)


class Section(BaseModel):
    """A closed, frozen group of keys. Text from a sheet is read as the key's own type (`1e-4` is a number)."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, coerce_numbers_to_str=True, protected_namespaces=()
    )


class _Same:
    """An object as a key of a cache: equal to itself alone, and kept, so that nothing else gets its id."""

    def __init__(self, kept: Any) -> None:
        self.kept = kept

    def __hash__(self) -> int:
        return id(self.kept)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.kept is other.kept


def once_per_object(function: Callable[[S], R]) -> Callable[[S], R]:
    """Runs of one recipe share most of their sections, which never change: what was found out of one is remembered.

    Callers must leave what is returned as it is.
    """

    @lru_cache(maxsize=256)
    def found(same: _Same) -> R:
        return function(same.kept)

    @wraps(function)
    def asked(section: S) -> R:
        return found(_Same(section))

    return asked


@once_per_object
def identity_of(section: Section) -> dict[str, Any]:
    """The identity keys of a section and of all sections inside it."""
    always, younger = _identity_keys(type(section))
    names = [*always, *(name for name, default in younger.items() if getattr(section, name) != default)]
    values = [(name, getattr(section, name)) for name in names]
    return {name: identity_of(value) if isinstance(value, Section) else value for name, value in values}


@lru_cache
def _identity_keys(kind: type[Section]) -> tuple[tuple[str, ...], dict[str, Any]]:
    """(those that always count, default of each that is `later`)."""
    extras = {name: field.json_schema_extra for name, field in kind.model_fields.items()}
    marked = {name: extra if isinstance(extra, dict) else IDENTITY for name, extra in extras.items()}
    younger = {name: kind.model_fields[name].default for name, extra in marked.items() if extra.get("later")}
    return tuple(name for name, extra in marked.items() if extra["identity"] and name not in younger), younger


def flat_section(section: Section, name: str) -> dict[str, Any]:
    """All keys of a section as JSON has them, as `name.key: value`. Found once per object, as above."""
    return _flat_section(_Same(section), name)


@lru_cache(maxsize=256)
def _flat_section(same: _Same, name: str) -> dict[str, Any]:
    return flatten(same.kept.model_dump(mode="json"), f"{name}.")


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"a": {"b": 1}}` as `{"a.b": 1}`; mappings of variables stay whole."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, dict) and prefix + name not in FREE_TEXT:
            flat.update(flatten(value, f"{prefix}{name}."))
        else:
            flat[prefix + name] = value
    return flat
