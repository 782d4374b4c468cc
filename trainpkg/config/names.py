"""How a config names what is made by code: by a word of ours, or as `package.module:name`, which is the user's own."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, Discriminator, JsonValue, StringConstraints

OWN = r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$"
OwnName = Annotated[str, StringConstraints(pattern=OWN)]
Kwargs = dict[str, JsonValue]
TASKS = ("images", "language")


def is_own(name: str | None) -> bool:
    """Whether a name is of the form `package.module:name`."""
    return name is not None and ":" in name


def by_name(ours: str) -> Discriminator:
    """Which alternative a section is: the one of its `name`, or `own` for `package.module:name`."""

    def kind(tree: Any) -> str | None:
        name = tree.get("name") if isinstance(tree, dict) else getattr(tree, "name", None)
        return name if not isinstance(name, str) or not is_own(name) else "own"

    message = f"expected one of {ours}, or package.module:name of your own"
    return Discriminator(kind, custom_error_type="union_tag_name", custom_error_message=message)


def _checked_task(name: str) -> str:
    if name not in TASKS and not is_own(name):
        raise ValueError(f"expected one of {', '.join(TASKS)}, or package.module:name of your own")
    return name


TaskName = Annotated[str, AfterValidator(_checked_task)]
