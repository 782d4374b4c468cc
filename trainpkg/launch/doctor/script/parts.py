"""What a batch script is made of: steps, programs with the place where they run, assignments, reads of variables."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

from trainpkg.launch.doctor.script.commands import Command
from trainpkg.launch.doctor.script.options import Option
from trainpkg.launch.doctor.script.request import Request
from trainpkg.launch.doctor.script.words import MARKS, OWN, Part, Word

Place = Literal["batch", "step", "mpi", "remote"]


@dataclass
class Step:
    """One `srun`."""

    command: Command
    options: list[Option]
    captured: bool
    request: Request
    number_of: Callable[[str], int | None]
    outer: Step | None = None  # the step in which it is started
    calls: list[Call] = field(default_factory=list)

    @property
    def line(self) -> int:
        return self.command.line

    def given(self, *names: str) -> bool:
        return any(option.name in names for option in self.options)

    def value(self, name: str) -> str | None:
        """The last value of an option."""
        return next((option.value for option in reversed(self.options) if option.name == name), None)

    def number(self, name: str) -> int | None:
        value = self.value(name)
        return None if value is None else self.number_of(value)

    @property
    def nodes(self) -> int | None:
        return self.number("nodes") if self.given("nodes") else self.request.nodes

    @property
    def num_tasks(self) -> int | None:
        """Tasks of the step, where that follows."""
        if self.given("ntasks"):
            return self.number("ntasks")
        if not self.given("ntasks-per-node", "nodes") and (asked := self.request.number("ntasks")) is not None:
            return asked
        per_node, nodes = self.tasks_per_node, self.nodes
        return per_node * nodes if per_node is not None and nodes is not None else None

    @property
    def tasks_per_node(self) -> int | None:
        """Tasks on each node; None where the script does not say."""
        if self.given("ntasks-per-node"):
            return self.number("ntasks-per-node")
        if self.given("ntasks"):
            if re.fullmatch(r"\$\{?SLURM_(JOB_NUM_NODES|NNODES)\}?", self.value("ntasks") or ""):
                return 1
            tasks, nodes = self.number("ntasks"), self.nodes
            return -(-tasks // nodes) if tasks and nodes else None
        return self.request.tasks_per_node


@dataclass(frozen=True)
class Call:
    """A program that runs in `place`. `words`: known values put in, without srun and its options.

    `marked` are the same words with marks around what the shell outside has expanded before this program's own saw it.
    """

    line: int
    marked: tuple[str, ...]
    place: Place
    command: Command
    step: Step | None
    captured: bool
    inner: bool  # read by a shell inside the batch script's

    @cached_property
    def words(self) -> tuple[str, ...]:
        return tuple(MARKS.sub("", word) for word in self.marked)

    @property
    def program(self) -> str:
        return self.words[0].rsplit("/", 1)[-1] if self.words else ""

    @property
    def text(self) -> str:
        return " ".join(self.words)

    @cached_property
    def late(self) -> str:
        """What a shell of the step itself expands, on each of its nodes; empty where the batch shell did it all."""
        return " ".join(re.findall(f"{OWN}([^{OWN}]*){OWN}", " ".join(self.marked))) if self.inner else ""


@dataclass(frozen=True)
class Assignment:
    """`value` is None where there is none, as in `export X`; known values are put in."""

    name: str
    value: str | None
    word: Word
    line: int
    place: Place
    exported: bool


@dataclass(frozen=True)
class Read:
    """A variable that somebody expands. `guarded`: with a default, or in a test of whether it is set."""

    name: str
    line: int
    place: Place
    guarded: bool
    part: Part
    command: Command
