"""Simple commands of a shell script, in order, with what stands around each: operators, loops, substitutions.

No shell: nothing is evaluated, control flow is only noted. What it does not understand raises NotUnderstood.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from trainpkg.launch.doctor.script.words import ENDS_WORD, NotUnderstood, Part, Reader, Word

OPERATORS = (";;&", ";;", ";&", "&&", "||", "|&", "|", "&", ";", "\n")
OPENING = frozenset({"if", "then", "elif", "else", "while", "until", "do", "{", "!", "time", "("})
CLOSING = frozenset({"fi", "done", "esac", "}"})
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\[[^\]]*\])?\+?=")
REDIRECTION = re.compile(r"[0-9]*(?:&>>|&>|<<<|<<-|<<|<>|<&|>&|>>|>\||<|>)")
_EMPTY, _IN, _ESAC = re.compile(r"\(\s*\)"), re.compile(r"in\b"), re.compile(r"esac\b")
_PATTERN, _TEST_END = re.compile(r"(?:\\\n|[^\n])*?\)"), re.compile(r"\s\]\]")
DECLARING = frozenset({"export", "declare", "typeset", "local", "readonly"})


@dataclass
class Command:
    """One simple command. `around`: the keywords that it is inside of, outermost first; `after`: the operator."""

    line: int
    words: list[Word] = field(default_factory=list)
    assigned: list[tuple[str, Word]] = field(default_factory=list)  # NAME=value in front, or of export and its kin
    redirected: list[tuple[str, Word]] = field(default_factory=list)
    around: tuple[str, ...] = ()
    before: str = ""
    after: str = ""
    body: str | None = None  # of a here document
    body_expands: bool = True
    loop: str = ""  # NAME of `for NAME in ...`, which is a command of its own
    loop_over: list[Word] = field(default_factory=list)

    @property
    def program(self) -> str:
        """The first word without its folder; empty for a bare assignment."""
        return self.words[0].text.rsplit("/", 1)[-1] if self.words else ""

    @property
    def conditional(self) -> bool:
        """Whether it may not run, or run several times."""
        return bool(set(self.around) & {"if", "while", "for", "case", "function"}) or self.before in ("&&", "||")

    @property
    def text(self) -> str:
        return " ".join(word.text for word in self.words)


class Parser(Reader):
    """Reads a script from its beginning."""

    def __init__(self, text: str, line: int = 1) -> None:
        super().__init__(text, line)
        self.found: list[Command] = []
        self.comments: dict[int, str] = {}
        self._around: list[str] = []
        self.bodies: list[range] = []
        self._bodies: list[tuple[Command, str, bool, bool]] = []
        self._before = ""

    def commands(self) -> list[Command]:
        """All commands. Raises NotUnderstood; `found` has those before."""
        while True:
            self._blanks()
            if not self.peek():
                return self.found
            start = self.at
            self._one()
            if self.at == start:
                raise NotUnderstood(f"line {self.line}")

    def _blanks(self, newlines: bool = True) -> None:
        while char := self.peek():
            if char == "\\" and self.peek(1) == "\n":
                self.take(2)
            elif char in " \t\r" or (char == "\n" and newlines and not self._bodies):
                self.take()
            elif char == "\n" and newlines:
                self.take()
                self._here_documents()
            elif char == "#":
                line, start = self.line, self.at
                while self.peek() not in ("\n", ""):
                    self.take()
                self.comments[line] = self.text[start : self.at]
            else:
                return

    def _one(self) -> None:
        """One command or one keyword."""
        if self.starts("((") and self._arithmetic():
            return
        if self.peek() in ("(", ")"):
            if self.take() == "(":
                self._around.append("(")
            else:
                self._leave("(")
                self._operator(None)
            return
        if self._operator(None):
            return
        if REDIRECTION.match(self.text, self.at):
            self._simple(Command(self.line, around=tuple(self._around), before=self._before))
            return
        start, line = self.at, self.line
        word = self.word()
        if self.at == start:
            raise NotUnderstood(f"line {line}")
        if not word.quoted and self._keyword(word):
            return
        command = Command(line, around=tuple(self._around), before=self._before)
        if word.text == "[[":
            self._test(command)
            return
        self._add(command, word)
        self._blanks(newlines=False)
        if self._skip(_EMPTY):
            self._around.append("function")
            self._blanks()
            return
        self._simple(command)

    def _arithmetic(self) -> bool:
        try:
            end = self._balanced(self.at)
        except NotUnderstood:
            return False
        if self.text[end - 2 : end] != "))":
            return False
        self.take(end - self.at)
        self._operator(None)
        return True

    def _keyword(self, word: Word) -> bool:
        """Handle a keyword; False where the word is none."""
        name = word.text
        if name in ("if", "while", "until", "{"):
            self._around.append(name.replace("until", "while"))
        elif name in ("for", "select"):
            self._for()
        elif name == "case":
            self._blanks(newlines=False)
            self.word()
            self._blanks()
            self.word()  # in
            self._around.append("case")
            self._pattern()
        elif name == "function":
            self._blanks(newlines=False)
            self.word()
            self._blanks(newlines=False)
            self._skip(_EMPTY)
            self._around.append("function")
        elif name in CLOSING:
            self._leave({"fi": "if", "esac": "case", "}": "{"}.get(name, "loop"))
            self._blanks(newlines=False)
            command = Command(self.line)
            while match := REDIRECTION.match(self.text, self.at):
                self._redirection(command, match[0])
                self._blanks(newlines=False)
            self._operator(None)
        elif name not in OPENING:
            return False
        self._before = "" if name not in CLOSING else self._before
        return True

    def _for(self) -> None:
        self._around.append("for")
        self._blanks(newlines=False)
        if self.starts("(("):
            self._arithmetic()
            return
        command = Command(self.line, around=tuple(self._around))
        name = self.word()
        self._blanks()
        command.loop = name.text
        if _IN.match(self.text, self.at):
            self.take(2)
            while True:
                self._blanks(newlines=False)
                if not (char := self.peek()) or char in ENDS_WORD:
                    break
                command.loop_over.append(self.word())
        self.found.append(command)
        self._operator(None)

    def _pattern(self) -> None:
        """Pass over `a|b)` of a case."""
        self._blanks()
        if _ESAC.match(self.text, self.at):
            return
        if not self._skip(_PATTERN):
            raise NotUnderstood(f"line {self.line}")

    def _skip(self, pattern: re.Pattern[str]) -> bool:
        match = pattern.match(self.text, self.at)
        self.take(len(match[0]) if match else 0)
        return match is not None

    def _leave(self, name: str) -> None:
        wanted = ("while", "for") if name == "loop" else (name,)
        while self._around:
            left = self._around.pop()
            if left in wanted:
                break
        if name == "{" and self._around and self._around[-1] == "function":
            self._around.pop()

    def _operator(self, command: Command | None) -> str:
        """Take an operator if one stands here."""
        self._blanks(newlines=False)
        for sign in OPERATORS:
            if self.starts(sign):
                self.take(len(sign))
                if sign == "\n" and self._bodies:
                    self._here_documents()
                if command is not None:
                    command.after = sign
                self._before = sign if sign in ("&&", "||", "|", "|&") else ""
                if sign.startswith(";;") or sign == ";&":
                    self._pattern()
                return sign
        return ""

    def _simple(self, command: Command) -> None:
        """The rest of a simple command, up to its operator."""
        while True:
            self._blanks(newlines=False)
            if not self.peek() or self.peek() == ")":
                break
            if (match := REDIRECTION.match(self.text, self.at)) and not self.starts("<(") and not self.starts(">("):
                self._redirection(command, match[0])
            elif self.starts("<(") or self.starts(">("):
                command.words.append(self._process())
            elif self._operator(command):
                break
            elif self.peek() == "(":
                raise NotUnderstood(f"line {self.line}")
            else:
                self._add(command, self.word())
        self.found.append(command)

    def _test(self, command: Command) -> None:
        """`[[ ... ]]`, whose inside has operators of its own."""
        end = _TEST_END.search(self.text, self.at)
        if end is None:
            raise NotUnderstood(f"line {self.line}: [[ is not closed")
        inner = Reader(self.text[self.at : end.start()], self.line)
        command.words.append(Reader("[[", self.line).word())
        while inner.peek():
            if inner.peek() in " \t\r\n;&|<>()":
                inner.take()
            else:
                command.words.append(inner.word())
        self.take(end.end() - self.at)
        self._operator(command)
        self.found.append(command)

    def _add(self, command: Command, word: Word) -> None:
        match = ASSIGNMENT.match(word.parts[0].value) if word.parts and not word.parts[0].quoted else None
        if match and (not command.words or command.words[0].text in DECLARING):
            command.assigned.append((match[1], word.split(match.end())))
            if not command.words:
                return
        command.words.append(word)

    def _redirection(self, command: Command, sign: str) -> None:
        self.take(len(sign))
        self._blanks(newlines=False)
        target = self._process() if self.starts("<(") or self.starts(">(") else self.word()
        command.redirected.append((sign, target))
        if sign.endswith(("<<", "<<-")):
            self._bodies.append((command, target.text, sign.endswith("-"), not target.quoted))

    def _process(self) -> Word:
        """`<(...)`, as a word that holds the command."""
        end = self._balanced(self.at + 1)
        line, text = self.line, self.take(end - self.at)
        return Word((Part("command", text[2:-1], False, line),), line)

    def _here_documents(self) -> None:
        for command, end, indented, expands in self._bodies:
            lines, first = [], self.line
            while self.peek():
                line = self.take(self._line_length())
                if (line.strip("\t\n") if indented else line.rstrip("\n")) == end:
                    break
                lines.append(line)
            command.body, command.body_expands = "".join(lines), expands
            self.bodies.append(range(first, self.line))
        self._bodies = []

    def _line_length(self) -> int:
        end = self.text.find("\n", self.at)
        return (len(self.text) if end < 0 else end + 1) - self.at
