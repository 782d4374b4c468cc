"""Words of a shell script: quotes, expansions and substitutions told apart, nothing expanded and nothing run.

As much of bash as batch scripts use. A word is a list of parts, since who expands `$X` (the batch shell, or the shell
that a step starts with the quoted text) decides what it means.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

NAME = re.compile(r"[A-Za-z_]\w*")
SPECIAL = re.compile(r"[0-9@*#?$!-]")
ENDS_WORD = " \t\r\n;&|<>()"
OWN = "\ue001"  # encloses what the shell that reads a word expands
OUTER = "\ue000"  # encloses, in the text for an inner shell, what the one around it has expanded already
MARKS = re.compile(f"[{OWN}{OUTER}]")

Kind = Literal["text", "variable", "command", "arithmetic"]


class NotUnderstood(ValueError):
    """The reader lost its way: an unclosed quote, or syntax beyond it."""


@dataclass(frozen=True)
class Part:
    """`value`: text; the inside of `${...}`; the script of `$(...)`; the expression of `$((...))`."""

    kind: Kind
    value: str
    quoted: bool = False  # in any quotes
    line: int = 0

    @property
    def name(self) -> str:
        """Of a variable: its name, or the special character."""
        match = NAME.match(self.value.lstrip("#!")) or SPECIAL.match(self.value)
        return match[0] if match else ""

    @property
    def written(self) -> str:
        """As it stands in a script, without quotes."""
        if self.kind == "text":
            return self.value
        opening, closing = {"variable": ("${", "}"), "command": ("$(", ")"), "arithmetic": ("$((", "))")}[self.kind]
        plain = self.kind == "variable" and self.value == self.name
        return f"${self.value}" if plain else f"{opening}{self.value}{closing}"


@dataclass(frozen=True)
class Word:
    """`items` has the words of an array assignment `x=(...)`."""

    parts: tuple[Part, ...]
    line: int
    items: tuple[Word, ...] = ()

    @property
    def text(self) -> str:
        """Quotes removed, expansions as they are written."""
        return "".join(part.written for part in self.parts)

    @property
    def literal(self) -> str | None:
        """The text where nothing in it is expanded."""
        return self.text if all(part.kind == "text" for part in self.parts) else None

    @property
    def quoted(self) -> bool:
        return any(part.quoted for part in self.parts)

    def split(self, at: int) -> Word:
        """The word behind `at` characters of its first part, as the value of NAME=value."""
        first = self.parts[0]
        rest = Part(first.kind, first.value[at:], first.quoted, first.line)
        return Word((rest, *self.parts[1:]) if rest.value else self.parts[1:], self.line, self.items)


class Reader:
    """A position in a text, with the line that it is in."""

    def __init__(self, text: str, line: int = 1) -> None:
        self.text, self.line, self.at = text, line, 0

    def peek(self, ahead: int = 0) -> str:
        """The character there; empty at the end."""
        index = self.at + ahead
        return self.text[index] if index < len(self.text) else ""

    def starts(self, word: str) -> bool:
        return self.text.startswith(word, self.at)

    def take(self, number: int = 1) -> str:
        taken = self.text[self.at : self.at + number]
        self.at += number
        self.line += taken.count("\n")
        return taken

    def word(self) -> Word:
        """The word that begins here."""
        line = self.line
        parts: list[Part] = []
        items: tuple[Word, ...] = ()
        while (char := self.peek()) and char not in ENDS_WORD:
            if char == "\\":
                self.take()
                if (escaped := self.take()) != "\n":
                    parts.append(Part("text", escaped, True, self.line))
            elif char == "'":
                self.take()
                parts.append(Part("text", self._until("'"), True, self.line))
            elif self.starts("$'"):
                self.take(2)
                parts.append(Part("text", self._ansi_text(), True, self.line))
            elif char == '"' or self.starts('$"'):
                self.take(1 + (char == "$"))
                parts += self._double_quoted()
            elif (part := self._expansion(False)) is not None:
                parts.append(part)
            else:
                number = max(1, self.text.find(OUTER, self.at + 1) + 1 - self.at) if char == OUTER else 1
                parts.append(Part("text", self.take(number), False, self.line))
            if self.peek() == "(" and parts[-1].value == "=" and not parts[-1].quoted:
                items = self._array()
        if char and char in "<>" and self.peek(1) == "(" and not parts:
            raise NotUnderstood(f"line {self.line}")
        return Word(tuple(_joined(parts)), line, items)

    def _until(self, end: str) -> str:
        found = self.text.find(end, self.at)
        if found < 0:
            raise NotUnderstood(f"line {self.line}: a quote is not closed")
        taken = self.take(found - self.at)
        self.take(len(end))
        return taken

    def _ansi_text(self) -> str:
        taken = ""
        while self.peek() != "'":
            if not self.peek():
                raise NotUnderstood(f"line {self.line}: a quote is not closed")
            taken += self.take(2 if self.peek() == "\\" else 1)
        self.take()
        return taken

    def _double_quoted(self) -> list[Part]:
        parts = []
        line = self.line
        while (char := self.peek()) != '"':
            if not char:
                raise NotUnderstood(f"line {line}: a quote is not closed")
            if char == "\\" and self.peek(1) in '$`"\\\n' and self.peek(1):
                self.take()
                if (escaped := self.take()) != "\n":
                    parts.append(Part("text", escaped, True, self.line))
            elif (part := self._expansion(True)) is not None:
                parts.append(part)
            else:
                number = max(1, self.text.find(OUTER, self.at + 1) + 1 - self.at) if char == OUTER else 1
                parts.append(Part("text", self.take(number), True, self.line))
        self.take()
        return parts or [Part("text", "", True, line)]

    def _expansion(self, quoted: bool) -> Part | None:
        """What begins with `$` or a backquote here, or None where that stands for itself."""
        line = self.line
        if self.peek() == "`":
            self.take()
            script = ""
            while self.peek() != "`":
                if not self.peek():
                    raise NotUnderstood(f"line {line}: a backquote is not closed")
                script += self.take(1 if self.peek() != "\\" or self.peek(1) not in "`$\\" else 2)
            self.take()
            return Part("command", script, quoted, line)
        if self.peek() != "$":
            return None
        if self.starts("$((") and (end := self._balanced(self.at + 1)) and self.text[end - 2 : end] == "))":
            inside = self.text[self.at + 3 : end - 2]
            self.take(end - self.at)
            return Part("arithmetic", inside, quoted, line)
        if self.starts("$(") or self.starts("${"):
            end = self._balanced(self.at + 1)
            kind: Kind = "command" if self.peek(1) == "(" else "variable"
            inside = self.text[self.at + 2 : end - 1]
            self.take(end - self.at)
            return Part(kind, inside, quoted, line)
        match = NAME.match(self.text, self.at + 1) or SPECIAL.match(self.text, self.at + 1)
        if match is None:
            return None
        self.take(1 + len(match[0]))
        return Part("variable", match[0], quoted, line)

    def _balanced(self, start: int) -> int:
        """The position behind the bracket that closes the one at `start`; quotes inside are passed over."""
        inner = Reader(self.text, self.line)
        inner.at = start
        opening = self.text[start]
        closing = {"(": ")", "{": "}"}[opening]
        depth = 0
        while char := inner.peek():
            if char == "\\":
                inner.take(2)
                continue
            if char == "'" and (opening == "(" or depth == 0):
                inner.take()
                inner._until("'")
                continue
            if char == '"':
                inner.take()
                inner._double_quoted()
                continue
            if char == "#" and opening == "(" and self.text[inner.at - 1] in " \t\n":  # a comment in $(...)
                while inner.peek() not in ("\n", ""):
                    inner.take()
                continue
            depth += (char == opening) - (char == closing)
            inner.take()
            if depth == 0:
                return inner.at
        raise NotUnderstood(f"line {self.line}: a bracket is not closed")

    def _array(self) -> tuple[Word, ...]:
        self.take()
        items = []
        while self.peek() != ")":
            if not self.peek():
                raise NotUnderstood(f"line {self.line}: a bracket is not closed")
            if self.peek() == "#":
                while self.peek() not in ("\n", ""):
                    self.take()
            elif self.peek() in " \t\r\n":
                self.take()
            elif self.peek() in ENDS_WORD:
                raise NotUnderstood(f"line {self.line}")
            else:
                items.append(self.word())
        self.take()
        return tuple(items)


def _joined(parts: list[Part]) -> list[Part]:
    """Neighbouring text of one kind of quoting as one part."""
    joined: list[Part] = []
    for part in parts:
        last = joined[-1] if joined else None
        if last is not None and last.kind == part.kind == "text" and last.quoted == part.quoted:
            joined[-1] = Part("text", last.value + part.value, part.quoted, last.line)
        else:
            joined.append(part)
    return joined
