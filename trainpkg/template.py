"""Placeholders such as {rank_offset} in a user's own command line. Pure; `{{` and `}}` are literal braces.

A line is split into words as a shell would, before anything is filled in: what is filled in never becomes two words,
except `{entry}`, which stands for several.
"""

from __future__ import annotations

import difflib
import shlex
import string
from collections.abc import Collection, Mapping

OF_RUN = ("run", "run_dir")
NODE = (
    "rank_offset", "world_size", "node_rank", "num_nodes", "gpus_per_node", "master_addr", "master_port", "dist_url",
    "hosts", *OF_RUN,
)  # fmt: skip
COMMAND = (*NODE, "python", "entry")
RANK = (*NODE, "rank", "local_rank")


def names_in(text: str) -> list[str]:
    """The names in braces. Raises ValueError with a sentence where braces do not pair or hold more than a name."""
    found = []
    for _, name, spec, conversion in string.Formatter().parse(text):
        if name is None:
            continue
        if spec or conversion:
            raise ValueError(f"{{{name}{'!' + conversion if conversion else ''}{':' + spec if spec else ''}}} is more "
                             "than a name in braces; write {{ and }} for literal ones")  # fmt: skip
        found.append(name)
    return found


def trouble(text: str, known: Collection[str]) -> str:
    """What is wrong with the placeholders of a text, or nothing."""
    try:
        unknown = [name for name in names_in(text) if name not in known]
    except ValueError as error:
        return str(error) if "literal" in str(error) else f"{error}; write {{{{ and }}}} for literal braces"
    if not unknown:
        return ""
    near = difflib.get_close_matches(unknown[0], known, n=1)
    hint = f"; nearest: {{{near[0]}}}" if near else ""
    return f"unknown placeholder {{{unknown[0]}}}{hint}; known are {' '.join(f'{{{name}}}' for name in known)}"


def fill(text: str, values: Mapping[str, str]) -> str:
    """The text with each name in braces replaced by its value."""
    return text.format_map(values)


def fill_line(line: str, values: Mapping[str, str], entry: list[str]) -> list[str]:
    """The words of a command line, filled in; the word `{entry}` becomes the words of `entry`."""
    words: list[str] = []
    for word in shlex.split(line):
        words += entry if word == "{entry}" else [fill(word, {**values, "entry": shlex.join(entry)})]
    return words


def uses_entry(line: str) -> bool:
    """Whether a command line starts what the launcher gives it to start."""
    try:
        return "entry" in names_in(line)
    except ValueError:
        return False
