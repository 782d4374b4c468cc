"""The options of sbatch and srun, Slurm 22.05 to 24.11, read as their getopt reads them.

A name that is only begun is taken where it is unique, and refused as ambiguous where it is not. Options of a site's
plugins are not in the table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# name, then `=` with an argument or `?` with an optional one (only after `=`), then the letter
_BOTH = """
account=A acctg-freq= autocomplete= bb= bbf= begin=b chdir=D cluster= cluster-constraint= clusters=M comment=
constraint=C consolidate-segments container= container-id= contiguous core-spec=S cores-per-socket= cpu-freq=
cpus-per-gpu= cpus-per-task=c deadline= delay-boot= dependency=d distribution=m error=e exclude=x exclusive? export=
extra= extra-node-info=B gid= gpu-bind= gpu-freq= gpus=G gpus-per-node= gpus-per-socket= gpus-per-task= gres=
gres-flags= help.h hint= hold.H input=i job-name=J licenses=L mail-type= mail-user= mcs-label= mem= mem-bind=
mem-per-cpu= mem-per-gpu= mincpus= network= nice? no-kill?k nodefile=F nodelist=w nodes=N ntasks=n ntasks-per-core=
ntasks-per-gpu= ntasks-per-node= ntasks-per-socket= ntasks-per-tres= oom-kill-step? open-mode= output=o overcommit.O
oversubscribe.s partition=p power= prefer= priority= profile= propagate? qos=q quiet.Q reboot reservation= resv-ports?
segment= signal= sockets-per-node= spread-job spread-segments stepmgr switches= test-only thread-spec=
threads-per-core= time=t time-min= tmp= tres-bind= tres-per-task= uid= usage use-min-nodes verbose.v version.V wckey=
"""
_SBATCH = """
array=a batch= export-file= get-user-env? ignore-pbs kill-on-invalid-dep= no-requeue parsable requeue wait.W
wait-all-nodes= wrap=
"""
_SRUN = """
accel-bind= bcast? bcast-exclude= compress? cpu-bind= debugger-test disable-status.X epilog= exact external-launcher
het-group= immediate?I interactive jobid= kill-on-bad-exit?K label.l launch-cmd launcher-opts= mpi= msg-timeout=
multi-prog no-allocate.Z overlap pack-group= preserve-env.E prolog= pty? quit-on-interrupt relative=r send-libs?
slurmd-debug= task-epilog= task-prolog= threads=T treewidth= unbuffered.u wait=W whole x11?
"""
_SHORT_ALONE = {"I", "K", "k"}  # optional arguments of letters are written without a blank: -K1


@dataclass(frozen=True)
class Table:
    """`takes`: `=`, `?` or nothing, by name; `letters`: letter -> name."""

    program: str
    takes: dict[str, str]
    letters: dict[str, str]


@dataclass(frozen=True)
class Option:
    """One option as written, and what the program makes of it: `name` is empty where it knows none."""

    name: str
    value: str | None
    written: str
    candidates: tuple[str, ...] = ()  # of an unclear beginning


def _table(program: str, *texts: str) -> Table:
    takes, letters = {}, {}
    for entry in " ".join(texts).split():
        at = next((index for index, char in enumerate(entry) if char in "=?."), len(entry))
        name, kind, letter = entry[:at], entry[at : at + 1], entry[at + 1 :]
        takes[name] = kind.replace(".", "")
        if letter:
            letters[letter] = name
    return Table(program, takes, letters)


SBATCH = _table("sbatch", _BOTH, _SBATCH)
SRUN = _table("srun", _BOTH, _SRUN)


def resolve(name: str, table: Table) -> tuple[str, tuple[str, ...]]:
    """The option that a long name means, or nothing and the options that it may mean."""
    if name in table.takes:
        return name, ()
    begun = tuple(sorted(known for known in table.takes if known.startswith(name)))
    return (begun[0], begun) if len(begun) == 1 else ("", begun)


def parse(words: Sequence[str], table: Table) -> tuple[list[Option], int]:
    """The options at the beginning of `words`, and the index of the first word that is none."""
    found: list[Option] = []
    at = 0
    while at < len(words):
        word = words[at]
        if word == "--":
            return found, at + 1
        if not word.startswith("-") or word == "-":
            break
        at += 1
        if word.startswith("--"):
            written, sign, value = word[2:].partition("=")
            name, candidates = resolve(written, table)
            given: str | None = value if sign else None
            if table.takes.get(name) == "=" and not sign and at < len(words):
                given = words[at]
                at += 1
            found.append(Option(name, given, f"--{written}", candidates))
            if not name and not sign and at < len(words) and not words[at].startswith("-"):
                break  # whether an unknown option takes the next word is not known: what follows is not read
            continue
        letter, rest = word[1], word[2:]
        name = table.letters.get(letter, "")
        kind = table.takes.get(name, "")
        if kind == "=" and not rest and at < len(words):
            found.append(Option(name, words[at], f"-{letter}"))
            at += 1
        elif kind == "=" or (kind == "?" and rest):
            found.append(Option(name, rest.removeprefix("="), f"-{letter}"))
        else:
            found.append(Option(name, None, f"-{letter}"))
            if rest and name:  # -lu: two letters
                more, _ = parse([f"-{rest}"], table)
                found += more
    return found, at
