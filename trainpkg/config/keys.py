"""What a key and a section of the config are: closed, frozen, each key marked as identity or execution."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

IDENTITY = {"identity": True}
EXECUTION = {"identity": False}
FREE_FORM = ("launch.env", "launch.env_prepend")  # mappings whose keys are the user's


def identity(default: Any = ..., description: str = "", **limits: Any) -> Any:
    """A key whose change makes another run."""
    return Field(default, description=description, json_schema_extra=dict(IDENTITY), **limits)


def execution(default: Any = ..., description: str = "", **limits: Any) -> Any:
    """A key that may change from attempt to attempt of one run."""
    return Field(default, description=description, json_schema_extra=dict(EXECUTION), **limits)


class Section(BaseModel):
    """A closed, frozen group of keys. Text from a sheet is read as the key's own type (`1e-4` is a number)."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, coerce_numbers_to_str=True, protected_namespaces=()
    )


def identity_of(section: Section) -> dict[str, Any]:
    """The identity keys of a section and of all sections inside it."""
    kept = {}
    for name, field in type(section).model_fields.items():
        extra = field.json_schema_extra
        value = getattr(section, name)
        if isinstance(extra, dict) and not extra["identity"]:
            continue
        kept[name] = identity_of(value) if isinstance(value, Section) else value
    return kept


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"a": {"b": 1}}` as `{"a.b": 1}`; free-form mappings stay whole."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, dict) and prefix + name not in FREE_FORM:
            flat.update(flatten(value, f"{prefix}{name}."))
        else:
            flat[prefix + name] = value
    return flat
