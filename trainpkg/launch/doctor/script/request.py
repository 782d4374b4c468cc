"""What a batch script asks of Slurm: its #SBATCH lines, those that sbatch reads and those that it does not."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, field

from trainpkg.launch.doctor.script import options
from trainpkg.launch.doctor.script.options import Option


@dataclass(frozen=True)
class Directive:
    """One #SBATCH line. `dead` says why sbatch does not read it; empty where it does."""

    line: int
    text: str
    options: tuple[Option, ...] = ()
    words: tuple[str, ...] = ()
    dead: str = ""


@dataclass
class Request:
    """The options by name, the last of each; counts where they are plain numbers."""

    options: dict[str, str | None] = field(default_factory=dict)
    lines: dict[str, int] = field(default_factory=dict)
    heterogeneous: bool = False

    def number(self, name: str) -> int | None:
        """The value of an option where it is a plain number."""
        value = self.options.get(name) or ""
        return int(value) if value.isdigit() else None

    @property
    def nodes(self) -> int | None:
        """The least number of nodes."""
        match = re.fullmatch(r"(\d+)(?:-\d+)?", self.options.get("nodes") or "")
        if match:
            return int(match[1])
        tasks, per_node = self.number("ntasks"), self.number("ntasks-per-node")
        return -(-tasks // per_node) if tasks and per_node else None

    @property
    def several_nodes(self) -> bool:
        return (self.nodes or 1) > 1 and not self.heterogeneous

    @property
    def tasks_per_node(self) -> int | None:
        """Tasks that a step gets per node by default; None where unknown."""
        tasks, nodes = self.number("ntasks"), self.nodes
        if "ntasks-per-node" in self.options:
            return self.number("ntasks-per-node")
        if tasks is not None and nodes:
            return -(-tasks // nodes)
        return 1 if not {"ntasks", "ntasks-per-gpu", "gpus-per-task", "tres-per-task"} & set(self.options) else None

    @property
    def gpus_per_node(self) -> int | None:
        """GPUs of each node, where that follows."""
        if "gpus-per-node" in self.options:
            return _count(self.options["gpus-per-node"] or "")
        match = re.fullmatch(
            r"(?:gres:|gres/)?gpu(?::[^,:]*[A-Za-z][^,:]*)?(?::(\d+))?", self.options.get("gres") or ""
        )
        if match:
            return int(match[1] or 1)
        total, nodes = _count(self.options.get("gpus") or ""), self.nodes
        if total and (nodes or 1) == 1:
            return total
        return None


def _count(text: str) -> int | None:
    """`a100:4` and `4` are 4; a list of several types is unknown."""
    match = re.fullmatch(r"(?:[^,:]*[A-Za-z][^,:]*:)?(\d+)", text)
    return int(match[1]) if match else None


def directives(lines: list[str]) -> list[Directive]:
    """All lines that are, or look like, #SBATCH lines."""
    found: list[Directive] = []
    begun = ""
    for number, line in enumerate(lines, 1):
        text = line.rstrip("\r\n")
        if text.startswith("#SBATCH") and (len(text) == 7 or text[7] in " \t"):
            if begun:
                found.append(Directive(number, text, dead=f"after the first command (line {begun})"))
                continue
            words = _words(text[7:])
            parsed = [] if words[:1] in (["hetjob"], ["packjob"]) else options.parse(words, options.SBATCH)[0]
            found.append(Directive(number, text, tuple(parsed), tuple(words)))
        elif (
            re.match(r"\s+#SBATCH\s+-|#\s+SBATCH\s+-|#\s*SBATCH:\s*-|#Sbatch\s+-|#sbatch\s+-|#SBATCH-", text)
            and not begun
        ):
            found.append(Directive(number, text, dead="it does not begin with exactly `#SBATCH `"))
        elif text.strip() and not text.lstrip().startswith("#") and not begun:
            begun = str(number)
    return found


def request(found: list[Directive]) -> Request:
    """What the living lines add up to."""
    asked = Request()
    for directive in found:
        if directive.words[:1] in (("hetjob",), ("packjob",)):
            asked.heterogeneous = True
        for option in directive.options:
            if option.name:
                asked.options[option.name] = option.value
                asked.lines[option.name] = directive.line
    return asked


def _words(text: str) -> list[str]:
    """The words of an #SBATCH line; sbatch ends it at a `#`, and knows quotes."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=False)
    lexer.whitespace_split, lexer.commenters = True, "#"
    try:
        return list(lexer)
    except ValueError:
        return text.split("#")[0].split()
