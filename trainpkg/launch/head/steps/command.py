"""What starts on a node: the launcher's program, after `launch.prologue`, under `launch.wrapper`, by `launch.python`.

The lines of the prologue run in one shell before that program takes its place, so that modules and environments hold
for it. The shell tells in a small file of the run directory how far it is: what ends there is named by its line and
status, and a node that is still loading modules is not taken for one that is lost.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trainpkg.launch.node.evidence import last_lines
from trainpkg.launch.spec import Spec

NODE_RANK = "TRAINPKG_NODE_RANK"  # which node it is, for the prologue's lines; unset before anything else starts

_FUNCTIONS = """\
export TRAINPKG_NODE_RANK=${TRAINPKG_NODE_RANK:-${SLURM_NODEID:-0}}
_trainpkg_tell() { { printf '%s\\n' "$1" > "$_trainpkg_dir/way-$TRAINPKG_NODE_RANK"; } 2> /dev/null || :; }
_trainpkg_after() { [ "$1" = 0 ] || _trainpkg_end "$1"; }
_trainpkg_end() {
  local status=${1:-$?}
  trap - EXIT
  _trainpkg_tell "ended $_trainpkg_line $status"
  printf 'trainpkg: error: %s: line %s of launch.prologue ended with status %s: %s\\n' \\
    "$HOSTNAME" "$_trainpkg_line" "$status" "$_trainpkg_text" >&4
  exit $((status ? status : 1))
}
"""
_BEGIN = """\
exec 3>&1 4>&2
if (: >> "$_trainpkg_dir/node-$TRAINPKG_NODE_RANK.log") 2> /dev/null; then
  exec >> "$_trainpkg_dir/node-$TRAINPKG_NODE_RANK.log" 2>&1
fi
trap _trainpkg_end EXIT
"""
_READY = """\
trap - EXIT
set +eu
exec 1>&3 2>&4 3>&- 4>&-
rm -f -- "$_trainpkg_dir/way-$TRAINPKG_NODE_RANK"
"""
_LAST = """\
if ! command -v -- "$1" > /dev/null; then
  _trainpkg_tell "misses $1"
  printf 'trainpkg: error: %s: %s is not there: %s\\n' "$HOSTNAME" "$1" "$_trainpkg_hint" >&2
  exit 127
fi
unset TRAINPKG_NODE_RANK
exec "$@"
"""


def node_command(spec: Spec, spec_path: Path, head: str) -> list[str]:
    """What runs on every node."""
    python = os.path.expanduser(spec.python) if spec.python else sys.executable  # noqa: PTH111  # may be a bare name
    return on_node(spec, [python, "-m", "trainpkg", "node", f"--spec={spec_path}", f"--head={head}"])


def on_node(spec: Spec, program: list[str]) -> list[str]:
    """The command that runs `program` on a node after the prologue and under the wrapper. More words may follow it."""
    return ["bash", "--noprofile", "--norc", "-c", script(spec), "trainpkg", *program]


def script(spec: Spec) -> str:
    """The shell's program: the prologue's lines, one by one, then wrapper and arguments in the shell's place."""
    parts = [f"_trainpkg_dir={shlex.quote(str(spec.generation_dir(0)))}", f"_trainpkg_hint={shlex.quote(hint(spec))}"]
    parts.append(_FUNCTIONS.rstrip())
    if spec.prologue:
        parts.append(_BEGIN.rstrip())
        for number, line in enumerate(spec.prologue, start=1):
            parts.append(f"_trainpkg_line={number} _trainpkg_text={shlex.quote(line)}; _trainpkg_tell 'runs {number}'")
            parts.append('eval "$_trainpkg_text"\n_trainpkg_after $?')  # in no function: `declare` would be local to it
        parts.append(_READY.rstrip())
    # the wrapper too shall see them; the launcher behind it applies them once more, inside
    parts += [f"export {name}={shlex.quote(value)}" for name, value in spec.env.items()]
    for name, value in spec.env_prepend.items():
        parts.append(f'export {name}={shlex.quote(value)}"${{{name}:+:${name}}}"')
    if spec.wrapper:
        parts.append(f'set -- {spec.wrapper} "$@"')
    return "\n".join([*parts, _LAST])


def hint(spec: Spec) -> str:
    """What to do where the first word of the command is not on a node."""
    if spec.wrapper:
        return "launch.wrapper begins with it; a line of launch.prologue may have to load it"
    if spec.python:
        return "launch.python names it; where it comes from a module or conda, load that in launch.prologue"
    return (
        "it runs Snakemake, and must lie on a file system that all nodes share; else launch.python names another "
        "Python there, launch.wrapper a container"
    )


@dataclass(frozen=True)
class OnTheWay:
    """Nodes whose shells have begun and whose launchers have not: what ended there, what others still do."""

    failed: list[str] = field(default_factory=list)
    busy: dict[int, str] = field(default_factory=dict)


def read_way(spec: Spec, refused: Mapping[str, str]) -> OnTheWay:
    """What the nodes' shells tell, as far as this machine can see the run directory's newest state.

    `refused`: hosts on which srun could not even start a shell, and its words.
    """
    failed, busy = [_refused(spec, host, words) for host, words in refused.items()], {}
    for path in sorted(spec.generation_dir(0).glob("way-*")):
        try:
            index, words = int(path.name.removeprefix("way-")), path.read_text().split(maxsplit=1)
            node = f"node {index} ({spec.hosts[index]})"
        except (OSError, ValueError, IndexError):
            continue
        if len(words) < 2:  # being written
            continue
        kind, rest = words[0], words[1].strip()
        if kind == "runs" and (line := _line(spec, rest)):
            busy[index] = f"{node}, which is in line {rest} of launch.prologue ({line}),"
        elif kind == "ended":
            failed.append(f"{node}: {_ended(spec, index, *rest.split())}")
        elif kind == "misses":
            failed.append(f"{node}: {rest} is not there: {hint(spec)}")
    return OnTheWay(failed, busy)


def _refused(spec: Spec, host: str, words: str) -> str:
    node = f"node {spec.hosts.index(host)} ({host})" if host in spec.hosts else host
    return (
        f"{node}: srun could not start its launcher there: {words}. Does slurmd run on it? "
        f"`scontrol show node {host}` tells what Slurm thinks of it"
    )


def _line(spec: Spec, number: str) -> str:
    known = number.isdigit() and 1 <= int(number) <= len(spec.prologue)
    return repr(spec.prologue[int(number) - 1]) if known else ""


def _ended(spec: Spec, index: int, number: str, status: str) -> str:
    line = _line(spec, number)
    log = last_lines(spec.generation_dir(0) / f"node-{index}.log")
    said = [text for text in log if not text.startswith("trainpkg: error: ")]  # that is the shell's own report
    words = f"; it said: {said[-1]}" if said else ""
    advice = ""
    if status == "127" and "module" in line:
        advice = (
            ". `module` is a function of login shells: a line before it must read the file that defines it, such as "
            "`source /etc/profile.d/modules.sh`"
        )
    elif status != "0" and "conda activate" in line:
        advice = '. A line before it must define conda, such as `eval "$(/path/to/conda shell.bash hook)"`'
    what = "ended the shell" if status == "0" else f"ended with status {status}"
    return f"line {number} of launch.prologue, {line}, {what}{words}{advice}"
