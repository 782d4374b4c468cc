"""Rules on variables and values: names that do not exist, Slurm's notations taken for numbers, ports, NCCL, conda."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator

from trainpkg import variables as environment
from trainpkg.launch.doctor.rows import WARN
from trainpkg.launch.doctor.script import variables
from trainpkg.launch.doctor.script.findings import Found, Rule
from trainpkg.launch.doctor.script.launchers import launchers
from trainpkg.launch.doctor.script.reading import Script
from trainpkg.launch.doctor.script.rules_address import several
from trainpkg.launch.doctor.script.rules_steps import training_steps

FIRST_EPHEMERAL, LAST_EPHEMERAL, LAST_PORT = 32_768, 60_999, 65_535
_PORT_NAME = re.compile(r"(?i).*(MASTER|RDZV|MAIN_PROCESS|DIST|COORDINATOR).*PORT")
_OTHER_SOURCES = frozenset({"source", ".", "eval", "module", "ml", "spack", "conda", "mamba", "micromamba"})
_SHELL_OWN = frozenset([
    "HOME", "USER", "PATH", "PWD", "OLDPWD", "HOSTNAME", "RANDOM", "SECONDS", "LINENO", "UID", "EUID",
    "PPID", "IFS", "SHELL", "TMPDIR",
])  # fmt: skip
_COUNTS = re.compile(r"SLURM_(STEP_|JOB_)?(TASKS|CPUS)_PER_NODE")


def slurm_names(script: Script) -> Iterator[Found]:
    """SLURM_ variables that no Slurm sets."""
    mine = {assignment.name for assignment in script.assignments}
    seen: set[str] = set()
    for read in script.reads:
        if not read.name.startswith("SLURM_") or read.name in mine | seen or variables.exists(read.name):
            continue
        seen.add(read.name)
        if meant := variables.meant(read.name):
            yield Found(read.line, f"Slurm sets no {read.name}: this is empty", f"Read {meant}.")


def names_on_request(script: Script) -> Iterator[Found]:
    """Variables that exist only where an option asked for them, and options that this script does not give."""
    mine = {assignment.name for assignment in script.assignments} | {read.name for read in script.reads if read.guarded}
    if not script.directives:
        return
    for read in script.reads:
        needs = variables.ON_REQUEST.get(read.name.removeprefix("SLURM_"), ())
        if not read.name.startswith("SLURM_") or not needs or read.name in mine or "array" in needs:
            continue
        if read.place == "batch" and not set(needs) & set(script.request.options):
            mine.add(read.name)
            why = (
                f"{read.name} is set only where --{needs[0]} was asked for, which this script does not do: it is empty"
            )
            other = {"SLURM_NTASKS": "SLURM_JOB_NUM_NODES", "SLURM_GPUS_PER_NODE": "SLURM_GPUS_ON_NODE"}.get(read.name)
            fix = f"Add `#SBATCH --{needs[0]}=...`" + (f", or read {other}." if other else ".")
            yield Found(read.line, why, fix, WARN)


def never_set(script: Script) -> Iterator[Found]:
    """A variable that is read, never set, and nearly called like one that is."""
    if script.trouble:
        return
    mine = {assignment.name for assignment in script.assignments}
    for call in script.calls:
        if call.program in ("read", "mapfile", "readarray", "getopts", "printf", "let", "local"):
            mine |= {word.split("=")[0] for word in call.words[1:]}
    guarded = {read.name for read in script.reads if read.guarded}
    elsewhere = any(call.program in _OTHER_SOURCES and call.place == "batch" for call in script.calls)
    plain = {variables.plain(name): name for name in mine if len(name) > 3}
    plain |= {variables.plain(name): name for name in variables.KNOWN if "NODELIST" in name} if not elsewhere else {}
    seen: set[str] = set()
    for read in script.reads:
        name = read.name
        if name in mine | guarded | seen | _SHELL_OWN or not re.fullmatch(r"[A-Za-z_]\w{3,}", name):
            continue
        if name.startswith(("SLURM", "BASH", "CUDA", "CONDA")) or read.part.value.startswith(("#", "!")):
            continue
        near = plain.get(variables.plain(name))
        if near is None and not elsewhere:
            near = next(iter(difflib.get_close_matches(name, [n for n in mine if len(n) > 5], n=1, cutoff=0.92)), None)
        if near is None:
            continue
        seen.add(name)
        loop = any(name in word.text for word in read.command.loop_over)
        what = "the loop runs for nothing, and the job ends with status 0" if loop else "it is empty"
        yield Found(read.line, f"{name} is never set here: {what}", f"Read {near}, which is set.")


def notations_as_numbers(script: Script) -> Iterator[Found]:
    asked = script.request
    typed = re.search(r"[A-Za-z]", asked.options.get("gpus-per-node") or "")
    seen: set[tuple[str, int]] = set()
    used = {
        (name, launcher.line): launcher.option("nproc_per_node", "num_processes", "num_gpus") or ""
        for launcher in launchers(script)
        for name in ("SLURM_GPUS_PER_NODE", "SLURM_TASKS_PER_NODE", "SLURM_JOB_CPUS_PER_NODE")
    }
    places = [(name, line) for (name, line), text in used.items() if re.search(rf"\b{name}\b", text)]
    places += [(read.name, read.line) for read in script.reads if read.part.kind == "arithmetic"]
    places += [(name, a.line) for a in script.assignments if a.name == "OMP_NUM_THREADS" and a.value
               for name in re.findall(r"SLURM_\w+", a.value)]  # fmt: skip
    for name, line in places:
        if (name, line) in seen:
            continue
        seen.add((name, line))
        if _COUNTS.fullmatch(name) and several(script):
            why = f"{name} is a notation, not a number: `4(x2)` for two nodes"
            fix = "Use SLURM_NTASKS_PER_NODE or SLURM_CPUS_ON_NODE, which are numbers (each where its option is given)."
            yield Found(line, why, fix)
        elif name == "SLURM_GPUS_PER_NODE" and typed:
            why = f"SLURM_GPUS_PER_NODE is {asked.options['gpus-per-node']!r} here, as it was asked for: no number"
            yield Found(line, why, "Use SLURM_GPUS_ON_NODE.")


def ports(script: Script) -> Iterator[Found]:
    exclusive = "exclusive" in script.request.options
    told: list[tuple[int, str, bool]] = []  # line, text, expanded on each node
    for a in script.assignments:
        if _PORT_NAME.fullmatch(a.name) and a.value:
            told.append((a.line, a.value, a.place == "step"))
    for launcher in launchers(script):
        for name in ("master_port", "main_process_port", "rdzv_endpoint"):
            text = launcher.option(name) or ""
            port = text.rpartition(":")[2] if name == "rdzv_endpoint" and ":" in text else text
            if (port and name != "rdzv_endpoint") or (port != text):
                told.append((launcher.line, port, bool(port) and port in launcher.call.late))
    seen: set[tuple[str, bool]] = set()
    for line, text, late in told:
        drawn = re.search(r"\bRANDOM\b|\bshuf\b", text)
        if (text, late) in seen:
            continue
        seen.add((text, late))
        if late and drawn and training_steps(script):
            why = "each node draws a port of its own: they never meet"
            yield Found(line, why, "Draw it once, in the batch script, and export it.")
            continue
        yield from _port(script, line, text, exclusive)


def _port(script: Script, line: int, text: str, exclusive: bool) -> Iterator[Found]:
    found = script.interval(text)
    if found is None:
        return
    low, high = FIRST_EPHEMERAL, LAST_EPHEMERAL
    below = "Stay below 32768: $((10000 + SLURM_JOB_ID % 20000))."
    if found.high > LAST_PORT:
        yield Found(line, f"this may be {found.high}, and ports end at 65535", below)
    elif found.exact is None and found.high >= low:
        why = f"between {found.low} and {found.high}; {low}-{high} are given to outgoing connections at any time"
        yield Found(line, why + " (Address already in use, now and then)", below, WARN)
    elif found.exact is not None and low <= found.low <= high:
        why = f"port {found.low} is among those given to outgoing connections at any time ({low}-{high})"
        yield Found(line, why, below, WARN)
    elif found.exact is not None and found.low and not exclusive:
        why = f"port {found.low} is fixed: a second job on the same node finds it taken, or joins this one's store"
        yield Found(line, why, "Derive it from the job: $((10000 + SLURM_JOB_ID % 20000)).", WARN)


def infiniband(script: Script) -> Iterator[Found]:
    """NCCL_IB_DISABLE=1 means off."""
    others = [a for a in script.assignments if re.match(r"NCCL_IB_(HCA|GID_INDEX|TC|SL|TIMEOUT|QPS)", a.name)]
    for a in script.assignments:
        if a.name != "NCCL_IB_DISABLE":
            continue
        said = " ".join(script.comments.get(line, "") for line in (a.line, a.line - 1)).lower()
        off = re.search(
            r"\b(disabl|turn(ing)? off|no infiniband|no ib\b|without (ib|infiniband)|ethernet|tcp only)", said
        )
        on = re.search(r"\b(enabl|use|using|turn(ing)? on)\w*\s+(the\s+)?(ib\b|infiniband|rdma)", said)
        if a.value == "1" and others:
            why = f"1 switches InfiniBand off, so that {others[0].name} (line {others[0].line}) has no effect"
            yield Found(a.line, why, "Set NCCL_IB_DISABLE=0 to use InfiniBand, or drop its settings.")
        elif a.value == "1" and on and not off:
            yield Found(
                a.line, "1 switches InfiniBand off, unlike the comment", "Set NCCL_IB_DISABLE=0, or drop the line."
            )
        elif a.value == "0" and off and not on:
            yield Found(a.line, "0 leaves InfiniBand on, unlike the comment", "Set NCCL_IB_DISABLE=1.")


def library_names(script: Script) -> Iterator[Found]:
    """Names that NCCL and torch have given up, or never had."""
    seen: set[str] = set()
    for a in script.assignments:
        if a.name not in seen and not a.name.startswith("SLURM_") and (told := environment.remark(a.name)):
            seen.add(a.name)
            today = environment.RENAMED.get(a.name)
            fix = f"Write {today}." if today else f"Drop {a.name}, or write the name that was meant."
            yield Found(a.line, f"{a.name} {told}", fix, WARN)


def interfaces(script: Script) -> Iterator[Found]:
    for a in script.assignments:
        value = a.value or ""
        if a.name == "GLOO_SOCKET_IFNAME" and value.startswith(("^", "=")):
            why = f"GLOO_SOCKET_IFNAME={value} is NCCL's way of writing: gloo looks for an interface of that very name"
            yield Found(a.line, why, "Give gloo the name of one interface, such as eth0.")
        loops = value.lstrip("=") == "lo" and a.name in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
        if loops and script.request.several_nodes:
            why = f"{a.name}={value} is loopback, which leads to no other node"
            yield Found(a.line, why, "Name the interface of the network between the nodes.")


def master_values(script: Script) -> Iterator[Found]:
    for a in script.assignments:
        value = a.word.literal
        if a.name != "MASTER_ADDR" or value is None:
            continue
        if value != value.strip() or " " in value or '"' in value or "'" in value:
            yield Found(a.line, f"the address {value!r} has blanks or quotes in it", "Write the bare address.")
        elif re.fullmatch(r"[^:]+:\d+", value):
            yield Found(
                a.line, f"{value!r} has a port in it", "Write the address alone, and the port into MASTER_PORT."
            )
    for call in script.calls:
        if call.program == "export" and "=" in call.words:
            yield Found(call.line, "blanks around `=`: the shell sets nothing", "Write NAME=value without blanks.")
        elif call.words[1:2] == ("=",) and re.fullmatch(r"[A-Z_]\w*", call.words[0]):
            why = f"blanks around `=`: the shell looks for a program called {call.words[0]}"
            yield Found(call.line, why, "Write NAME=value without blanks.")


def conda(script: Script) -> Iterator[Found]:
    if re.search(r"^#!.*bash.*\s-\w*[li]", script.raw) or script.trouble:
        return
    for call in script.calls:
        if call.program in ("source", ".", "eval", "module", "ml") or call.words[:3:2] == ("conda", "hook"):
            return
        if call.words[:2] in (("conda", "activate"), ("mamba", "activate")) and call.place == "batch":
            why = "a batch shell reads no ~/.bashrc: conda says `Run 'conda init'`, and the wrong Python runs"
            yield Found(call.line, why, 'Put `eval "$(conda shell.bash hook)"` before it.')
            return


RULES = (
    Rule("slurm-names", slurm_names, "SLURM_ variables that do not exist"),
    Rule("names-on-request", names_on_request, "SLURM_ variables that only an option brings"),
    Rule("never-set", never_set, "variables that are read but never set"),
    Rule("notations-as-numbers", notations_as_numbers, "Slurm's notations taken for numbers"),
    Rule("ports", ports, "ports that others have or get"),
    Rule("infiniband", infiniband, "NCCL_IB_DISABLE the wrong way round"),
    Rule("library-names", library_names, "names that NCCL or torch no longer read"),
    Rule("interfaces", interfaces, "interfaces that gloo or NCCL cannot use"),
    Rule("master-values", master_values, "addresses with blanks, quotes or a port"),
    Rule("conda", conda, "conda activate in a shell that does not know it"),
)
