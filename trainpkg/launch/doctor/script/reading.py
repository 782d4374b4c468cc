"""A batch script as the rules see it: the request, the steps, each program with the place where it runs, variables.

Values that are written down are put in where they are used; everything else stays as it is written. Nothing runs.
"""

from __future__ import annotations

import re
from functools import cached_property

from trainpkg.launch.doctor.script import options
from trainpkg.launch.doctor.script.arithmetic import Interval, interval
from trainpkg.launch.doctor.script.commands import DECLARING, Command, Parser
from trainpkg.launch.doctor.script.parts import Assignment, Call, Place, Read, Step
from trainpkg.launch.doctor.script.request import Directive, Request, directives, request
from trainpkg.launch.doctor.script.words import MARKS, OUTER, OWN, NotUnderstood, Part, Word

SHELLS = frozenset({"bash", "sh", "zsh", "dash"})
MPI = frozenset({"mpirun", "mpiexec", "mpiexec.hydra", "prun", "orterun"})
REMOTE = frozenset({"ssh", "pdsh", "clush", "dsh", "pssh", "parallel-ssh", "parallel", "rsh", "ansible"})
BEFORE = frozenset({"exec", "time", "nohup", "command", "env", "builtin", "stdbuf", "nice", "ionice", "!", "sudo"})
MARKED = re.compile(f"(?:{OWN}[^{OWN}]*{OWN}|{OUTER}[^{OUTER}]*{OUTER}|[^\\s{OWN}{OUTER}])+")


class Script:
    """A parsed script. `trouble` says where the reader lost its way; the rest of the script is then not known."""

    def __init__(self, text: str) -> None:
        self.raw = text
        text = text.replace("\r\n", "\n")
        self.lines = text.split("\n")
        self.directives: list[Directive] = directives(self.lines)
        self.request: Request = request(self.directives)
        self.steps: list[Step] = []
        self.calls: list[Call] = []
        self.assignments: list[Assignment] = []
        self.reads: list[Read] = []
        self.commands: list[Command] = []
        self.bodies: list[range] = []  # lines of here documents
        self.comments: dict[int, str] = {}
        self.trouble = ""
        self._inner = 0  # shells inside this one
        self.values: dict[str, str | None] = {}
        self.arrays: dict[str, list[str]] = {}
        self._walk(text, 1, "batch", None, False)

    @cached_property
    def names(self) -> dict[str, int]:
        """Slurm's variables whose value follows from the request."""
        asked = self.request
        tasks = asked.number("ntasks")
        if tasks is None and asked.tasks_per_node and asked.nodes and "ntasks-per-node" in asked.options:
            tasks = asked.tasks_per_node * asked.nodes
        known = {
            "SLURM_NNODES": asked.nodes,
            "SLURM_JOB_NUM_NODES": asked.nodes,
            "SLURM_GPUS_ON_NODE": asked.gpus_per_node,
            "SLURM_GPUS_PER_NODE": asked.number("gpus-per-node"),
            "SLURM_NTASKS_PER_NODE": asked.number("ntasks-per-node"),
            "SLURM_CPUS_PER_TASK": asked.number("cpus-per-task"),
            "SLURM_NTASKS": tasks,
            "SLURM_NPROCS": tasks,
        }
        return {name: value for name, value in known.items() if value is not None}

    def interval(self, text: str) -> Interval | None:
        return interval(text, self.names)

    def number(self, text: str) -> int | None:
        found = self.interval(text)
        return None if found is None else found.exact

    def line_text(self, line: int) -> str:
        return self.lines[line - 1].strip() if 0 < line <= len(self.lines) else ""

    # --- reading ---

    def _walk(self, text: str, line: int, place: Place, step: Step | None, captured: bool) -> None:
        parser = Parser(text, line)
        try:
            parser.commands()
        except NotUnderstood as error:
            self.trouble = self.trouble or str(error)
        if place == "batch" and not captured and line == 1:
            self.comments, self.bodies = parser.comments, parser.bodies
        for command in parser.found:
            if not captured and not self._inner:
                self.commands.append(command)
            targets = [target for _, target in command.redirected]
            for word in [*command.words, *(word for _, word in command.assigned), *command.loop_over, *targets]:
                self._read(word, command, place, step)
            self._call(command, place, step, captured)
            self._assign(command, place, captured)

    def _read(self, word: Word, command: Command, place: Place, step: Step | None) -> None:
        for item in word.items:
            self._read(item, command, place, step)
        testing = command.program in ("[", "[[", "test")
        for part in word.parts:
            if part.kind == "command":
                self._walk(part.value, part.line, place, step, True)
            elif part.kind == "arithmetic":
                for name in re.findall(r"[A-Za-z_]\w*", re.sub(r"\$\([^()]*\)", "", part.value)):
                    self.reads.append(Read(name, part.line, place, testing, part, command))
            elif part.kind == "variable" and part.name:
                rest = part.value.removeprefix(part.name)
                guarded = testing or rest[:2] in (":-", ":=", ":+", ":?") or rest[:1] in ("-", "=", "+", "?")
                self.reads.append(Read(part.name, part.line, place, guarded, part, command))

    def _assign(self, command: Command, place: Place, captured: bool) -> None:
        exported = command.program in ("export", "declare") or bool(command.words)
        if command.loop:
            self.assignments.append(Assignment(command.loop, None, Word((), command.line), command.line, place, False))
            self.values[command.loop] = None
        for name, word in command.assigned:
            value = self.marked(word)
            self.assignments.append(Assignment(name, MARKS.sub("", value), word, word.line, place, exported))
            if place != "batch" or captured or (command.words and command.program not in DECLARING):
                continue
            known = value if not command.conditional else None
            self.values[name] = known if name not in self.values or known is not None else None
            if word.items:
                self.values.pop(name, None)
                self.arrays[name] = [self.marked(item) for item in word.items]
        if command.program in DECLARING:
            for word in command.words[1:]:
                if word.literal and re.fullmatch(r"[A-Za-z_]\w*", word.literal):
                    self.assignments.append(Assignment(word.literal, None, word, word.line, place, True))

    def marked(self, word: Word) -> str:
        """The word with known values put in, and marks around what the shell expands that we do not know."""
        return "".join(self._fill(part) for part in word.parts)

    def _fill(self, part: Part) -> str:
        if part.kind == "text":
            return part.value
        if part.kind == "variable":
            if part.value == part.name and (known := self.values.get(part.name)) is not None:
                return known.replace(OWN, OUTER) if self._inner else known
            match = re.fullmatch(r"(\w+)\[(-?\d+)\]", part.value)
            items = self.arrays.get(match[1], []) if match else []
            if match and len(items) > abs(int(match[2])) and not MARKS.search("".join(items)):
                return items[int(match[2])]
        if part.kind == "arithmetic":
            known = re.sub(r"\$?\{?\b([A-Za-z_]\w*)\}?", lambda m: self.values.get(m[1]) or m[0], part.value)
            return f"{OWN}$(({MARKS.sub('', known)})){OWN}"
        return f"{OWN}{part.written}{OWN}"

    def _words(self, command: Command) -> list[tuple[str, Word]]:
        """The words, marked; an unquoted value of several words becomes several."""
        found: list[tuple[str, Word]] = []
        for word in command.words:
            text = self.marked(word)
            only = word.parts[0] if len(word.parts) == 1 else None
            if only is not None and only.kind == "variable" and not only.quoted:
                if (items := self.arrays.get(only.name)) is not None and only.value.endswith(("[@]", "[*]")):
                    found += [(item, word) for item in items]
                    continue
                found += [(piece, word) for piece in MARKED.findall(text)]
                continue
            found.append((text, word))
        return found

    def _call(self, command: Command, place: Place, step: Step | None, captured: bool) -> None:
        words = self._words(command)
        while words and (words[0][0] in BEFORE or re.match(r"[A-Za-z_]\w*=", words[0][0])):
            words = words[1:]
            while words and words[0][0].startswith("-"):
                words = words[1:]
        if not words:
            return
        program = words[0][0].rsplit("/", 1)[-1]
        texts = [MARKS.sub("", text) for text, _ in words]
        if program == "srun":
            given, end = options.parse(texts[1:], options.SRUN)
            inner = Step(command, given, captured, self.request, self.number, step)
            self.steps.append(inner)
            if step is not None or place != "batch":  # a step in a step is also a program of the outer one
                self._program(words, command, place, step, captured)
            self._program(words[1 + end :], command, "step", inner, captured)
        elif program == "eval":
            self._walk(" ".join(texts[1:]), command.line, place, step, captured)
        elif program in MPI or program in REMOTE:
            marked = tuple(text for text, _ in words)
            self.calls.append(Call(command.line, marked, place, command, step, captured, self._inner > 0))
            self._program(words[1:], command, "mpi" if program in MPI else "remote", step, captured)
        else:
            self._program(words, command, place, step, captured)

    def _program(
        self, words: list[tuple[str, Word]], command: Command, place: Place, step: Step | None, captured: bool
    ) -> None:
        if not words:
            return
        marked = tuple(text for text, _ in words)
        call = Call(command.line, marked, place, command, step, captured, self._inner > 0)
        self.calls.append(call)
        if step is not None:
            step.calls.append(call)
        for index, (text, _) in enumerate(words):
            if text.rsplit("/", 1)[-1] not in SHELLS:
                continue
            rest = words[index + 1 :]
            at = next((i for i, (t, _) in enumerate(rest) if re.fullmatch(r"-[a-z]*c[a-z]*", t)), None)
            if at is not None and at + 1 < len(rest) and all(t.startswith("-") for t, _ in rest[:at]):
                _, script = rest[at + 1]
                self._shell(self.marked(script), script.line, place, step, captured)
            elif command.body is not None and not any(not t.startswith("-") for t, _ in rest):
                self._shell(command.body, command.line + 1, place, step, captured)
            return

    def _shell(self, text: str, line: int, place: Place, step: Step | None, captured: bool) -> None:
        """A script for a shell that this one starts."""
        self._inner += 1
        self._walk(text.replace(OWN, OUTER), line, place, step, captured)
        self._inner -= 1
