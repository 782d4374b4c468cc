"""Rules on where ranks meet: the first node's name, the endpoint, ports, and counts of nodes and processes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from trainpkg.launch.doctor.rows import WARN
from trainpkg.launch.doctor.script.findings import Found, Rule
from trainpkg.launch.doctor.script.launchers import Launcher, launchers
from trainpkg.launch.doctor.script.parts import Assignment
from trainpkg.launch.doctor.script.reading import Script
from trainpkg.launch.network import is_loopback

_LIST = re.compile(r"SLURM_(JOB_|STEP_)?NODELIST")
_SPLITTERS = frozenset({"cut", "sed", "awk", "tr", "head", "grep", "perl", "read", "xargs"})
_MASTER = re.compile(r"(?i).*(MASTER|HEAD_?NODE|MAIN_PROCESS|RDZV)(?!.*PORT).*")
_FIRST = "scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1"
_OWN_NAME = re.compile(r"\$\(\s*hostname\b|\$\{?HOSTNAME\b|\$\{?SLURMD_NODENAME\b|\$\(\s*uname -n")


def several(script: Script) -> bool:
    """Whether the job has several nodes, as far as the script says; one without any #SBATCH line may."""
    return script.request.several_nodes or not script.directives


def split_by_hand(script: Script) -> Iterator[Found]:
    """The node list is a notation (`n[1-4,7]`), not a list with commas."""
    if not several(script):
        return
    lines: dict[int, None] = {}
    for read in script.reads:
        value = script.values.get(read.name) or ""
        is_list = _LIST.fullmatch(read.name) or re.fullmatch(r"\W*SLURM_(JOB_|STEP_)?NODELIST\W*", value)
        if is_list and read.part.kind == "variable" and re.match(r"\w+(%|#|/|:\d)", read.part.value):
            lines[read.line] = None
    for call, follower in itertools.pairwise(script.calls):
        piped = follower.command.before in ("|", "|&") and follower.program in _SPLITTERS
        if piped and call.program in ("echo", "printf") and _LIST.search(call.text) and "$(" not in call.text:
            lines[call.line] = None
    everywhere = [*script.commands, *(call.command for call in script.calls)]
    for command in {id(command): command for command in everywhere}.values():
        fed = any(
            sign == "<<<" and _LIST.search(word.text) and "$(" not in word.text for sign, word in command.redirected
        )
        looped = any(re.fullmatch(r"\$\{?SLURM_(JOB_|STEP_)?NODELIST\}?", word.text) for word in command.loop_over)
        if (fed and command.program in _SPLITTERS) or looped:
            lines[command.line] = None
    for line in lines:
        why = (
            "Slurm writes node lists in short (`n[1-2,7]`): cut at commas or brackets they give names that do not exist"
        )
        yield Found(
            line, why, 'Let Slurm expand it: scontrol show hostnames "$SLURM_JOB_NODELIST" (one name per line).'
        )


def unexpanded_master(script: Script) -> Iterator[Found]:
    for assignment in script.assignments:
        listed = re.fullmatch(r"\$\{?SLURM_(JOB_|STEP_)?NODELIST\}?", assignment.value or "")
        if script.request.several_nodes and _MASTER.fullmatch(assignment.name) and listed:
            why = "with several nodes this is a short notation such as `n[1-2]`, not a host"
            yield Found(assignment.line, why, f"Take the first host: $({_FIRST}).")


def last_host(script: Script) -> Iterator[Found]:
    """Rank 0 runs on the first node, whoever is called master."""
    if not several(script) or _meets_anywhere(script):
        return
    for assignment in _masters(script):
        value = assignment.value or ""
        array = re.search(r"\$\{(\w+)\[(?:-1|\$?\{?#\1.*- ?1.*)\]\}", value)
        listed = array and "hostname" in " ".join(script.arrays.get(array[1], []))
        tailed = re.search(r"show hostname.*\|\s*tail\s+-(n\s*)?1\b|show hostname.*\|\s*sed -n '?\$p", value)
        if listed or tailed:
            why = "this is the last host of the job, but rank 0, which the others wait for, runs on the first"
            yield Found(assignment.line, why, f"Take the first host: $({_FIRST}).")


def _masters(script: Script) -> Iterator[Assignment]:
    return (a for a in script.assignments if _MASTER.fullmatch(a.name) and a.value is not None)


def _meets_anywhere(script: Script) -> bool:
    """c10d's rendezvous takes any node of the job as its endpoint."""
    found = list(launchers(script, "torchrun"))
    return bool(found) and all((launcher.option("rdzv_backend") or "").startswith("c10d") for launcher in found)


def launch_node(script: Script) -> Iterator[Found]:
    for read in script.reads:
        if read.name != "SLURM_LAUNCH_NODE_IPADDR" or read.guarded:
            continue
        if read.place == "batch":
            why = "SLURM_LAUNCH_NODE_IPADDR is not set in a batch script, only inside steps: this is empty"
            yield Found(read.line, why, f"Take the first host: $({_FIRST}).")
        else:
            why = "SLURM_LAUNCH_NODE_IPADDR is where srun was called: under salloc the login node, not rank 0's"
            yield Found(read.line, why, f"Take the first host: $({_FIRST}).", WARN)


def address_by_hostname(script: Script) -> Iterator[Found]:
    if not several(script):
        return
    for call in script.calls:
        if call.program != "hostname" or not call.captured:
            continue
        if {"-i", "--ip-address"} & set(call.words):
            why = "hostname --ip-address asks /etc/hosts, where a node's own name may be 127.0.1.1"
            fix = "Use the host's name, or ask for its address on another node: getent ahostsv4 NAME."
            yield Found(call.line, why, fix, WARN)
        elif {"-I", "--all-ip-addresses"} & set(call.words) and call.command.after != "|":
            why = "hostname -I prints all addresses with a blank at the end: as one address that is refused"
            yield Found(call.line, why, "Use the host's name, or cut out the address of the right interface.")


def _endpoint(launcher: Launcher) -> str | None:
    """The host that a launcher was told, without the port. With c10d torchrun reads no --master-addr."""
    names = ("rdzv_endpoint",) if _finds_ranks(launcher) and launcher.kind == "torchrun" else (
        "rdzv_endpoint", "master_addr", "main_process_ip"
    )  # fmt: skip
    told = launcher.option(*names)
    return None if told is None else re.sub(r":[^:{}()]*$", "", told)


def endpoint(script: Script) -> Iterator[Found]:
    named = any(a.name in ("PET_RDZV_ENDPOINT", "PET_MASTER_ADDR", "PET_STANDALONE") for a in script.assignments)
    for launcher in launchers(script, "torchrun", "accelerate"):
        if not launcher.several_nodes or {"config_file", "deepspeed_hostfile"} & set(launcher.options):
            continue
        host = _endpoint(launcher)
        fix = f"Name the first host: --rdzv-backend=c10d --rdzv-endpoint=$({_FIRST}):PORT, the same for all nodes."
        if "standalone" in launcher.options:
            yield Found(launcher.line, "--standalone makes each node a job of its own: they never meet", fix)
        elif host is None and not named:
            more = ""
            if launcher.kind == "torchrun":
                ignored = "--master-addr with c10d" if "master_addr" in launcher.options else "MASTER_ADDR"
                more = f" (torchrun does not read {ignored})"
            yield Found(launcher.line, f"no endpoint is given: each node takes 127.0.0.1, itself{more}", fix)
        elif host is not None and (not host or is_loopback(host)):
            yield Found(launcher.line, f"the endpoint {host or 'is empty and'} leads each node to itself", fix)
        elif host is not None and _OWN_NAME.search(host) and _OWN_NAME.search(launcher.call.late):
            yield Found(launcher.line, "this is expanded on each node: each is the endpoint of its own", fix)
    if not script.request.several_nodes:
        return
    for assignment in script.assignments:
        if assignment.name != "MASTER_ADDR" or not assignment.value:
            continue
        if is_loopback(assignment.value):
            why = f"MASTER_ADDR={assignment.value} leads each of several nodes to itself"
            yield Found(assignment.line, why, f"Name the first host: MASTER_ADDR=$({_FIRST}).")
        elif assignment.place == "step" and _OWN_NAME.search(assignment.value):
            why = "this is expanded on each node: each is the master of its own"
            yield Found(assignment.line, why, "Set it in the batch script, outside srun, and export it.")


def counts_of_nodes(script: Script) -> Iterator[Found]:
    named = any(a.name in ("PET_NNODES", "PET_NODE_RANK") for a in script.assignments)
    for launcher in launchers(script, "torchrun", "accelerate"):
        step = launcher.call.step
        if "config_file" in launcher.options or "standalone" in launcher.options or named:
            continue
        key = "nnodes" if launcher.kind == "torchrun" else "num_machines"
        told = launcher.option(key)
        nodes = step.nodes if step is not None and launcher.call.place == "step" else None
        number = None if told is None else script.number(told)
        if launcher.several_nodes and told is None:
            why = f"--{key} is missing: each of the {nodes} nodes trains alone, as a job of one node"
            yield Found(launcher.line, why, f"Add --{key}=$SLURM_JOB_NUM_NODES.")
        elif number is not None and nodes is not None and number != nodes and (number > 1 or launcher.several_nodes):
            why = f"--{key} is {number}, but the step runs on {nodes} node(s)"
            yield Found(launcher.line, why, f"Take Slurm's number: --{key}=$SLURM_JOB_NUM_NODES.")
        elif launcher.several_nodes and not _has_node_rank(launcher):
            flag = "--node-rank" if launcher.kind == "torchrun" else "--machine_rank"
            why = f"without {flag} every node takes rank 0 (only --rdzv-backend=c10d finds the ranks itself)"
            yield Found(launcher.line, why, f"Add {flag}=$SLURM_NODEID inside the step (bash -c '...'), or use c10d.")


def _finds_ranks(launcher: Launcher) -> bool:
    return (launcher.option("rdzv_backend") or "").startswith(("c10d", "etcd"))


def _has_node_rank(launcher: Launcher) -> bool:
    return _finds_ranks(launcher) or launcher.option("node_rank", "machine_rank") is not None


def counts_of_processes(script: Script) -> Iterator[Found]:
    asked = script.request
    gpus, nodes = asked.gpus_per_node, asked.nodes or (1 if script.directives else None)
    if gpus is None or asked.heterogeneous:
        return
    for launcher in launchers(script, "torchrun", "accelerate"):
        step = launcher.call.step
        if step is not None and step.given(
            "gpus", "gpus-per-node", "gres", "gpus-per-task", "nodes", "ntasks-per-node"
        ):
            nodes_here = step.nodes
            if step.given("gpus", "gpus-per-node", "gres", "gpus-per-task"):
                continue
        else:
            nodes_here = nodes
        total = launcher.kind == "accelerate"
        wanted = gpus * (nodes_here or 0) if total else gpus
        key = "num_processes" if total else "nproc_per_node"
        number = script.number(launcher.option(key) or "")
        if number is None or not wanted or number == wanted or (step is not None and (step.tasks_per_node or 1) > 1):
            continue
        where = f"{nodes_here} x {gpus} GPUs" if total else f"{gpus} GPUs per node"
        why = f"--{key} is {number}, but the job asks for {where}"
        fix = "Derive it: $SLURM_GPUS_ON_NODE per node (times $SLURM_JOB_NUM_NODES for a total)."
        yield Found(launcher.line, why, fix, WARN if number < wanted else "bad")
    for assignment in script.assignments:
        number = script.number(assignment.value or "") if assignment.name == "WORLD_SIZE" else None
        literal = assignment.word.literal is not None
        if number is not None and literal and nodes and number not in (nodes * gpus, nodes, asked.number("ntasks")):
            why = f"WORLD_SIZE is {number}, but the job asks for {nodes} x {gpus} GPUs"
            yield Found(assignment.line, why, "Derive it: $((SLURM_JOB_NUM_NODES * SLURM_GPUS_ON_NODE)).")


RULES = (
    Rule("node-list", split_by_hand, "a node list cut by hand"),
    Rule("node-list-as-host", unexpanded_master, "a node list taken for a host"),
    Rule("last-host", last_host, "the last host taken as master"),
    Rule("launch-node", launch_node, "the node where srun was called taken as master"),
    Rule("hostname-address", address_by_hostname, "an address that may be loopback, or several"),
    Rule("endpoint", endpoint, "an endpoint that is missing or leads each node to itself"),
    Rule("node-count", counts_of_nodes, "number and rank of nodes"),
    Rule("process-count", counts_of_processes, "numbers of processes unlike the GPUs asked for"),
)
