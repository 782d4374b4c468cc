"""What a node knows about itself and tells at the roll call, and which facts of several nodes contradict each other.

Versions come from the packages' metadata, so nothing is imported and a node can answer before torch could.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import os
import platform
import socket
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trainpkg
from trainpkg.errors import UserError
from trainpkg.launch import network
from trainpkg.launch.spec import Spec
from trainpkg.launch.start import mpi

MAX_NAMED = 8
MAX_CLOCK_SKEW_S = 30.0
MPI = "the MPI library"
MUST_AGREE = ("python", "torch", "trainpkg", MPI)
NCCL_PACKAGES = ("nvidia-nccl-cu12", "nvidia-nccl-cu13")  # one of them comes with a torch for CUDA


class RollCallError(Exception):
    """The nodes cannot start together; the text names the nodes and what to do."""


@dataclass(frozen=True)
class NodeFacts:
    """One node's answer to the roll call. `trouble` is why it cannot take part, as a sentence."""

    index: int
    host: str
    pid: int
    num_ranks: int
    device: str  # cpu | cuda
    gpus: list[str] = field(default_factory=list)
    addresses: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    code_hash: str = ""
    cwd: str = ""
    num_cpus: int = 1
    clock_unix_s: float = 0.0
    machine: str = ""  # equal on one machine (or one network of a machine's own)
    trouble: str = ""
    threads: int = 1  # of each rank
    threads_reason: str = ""
    variables: dict[str, str] = field(default_factory=dict)  # that the libraries read, as the ranks get them
    remarks: list[str] = field(default_factory=list)  # on the environment, as sentences

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> NodeFacts:
        """Facts as they came over the wire. Raises ValueError when they are not of this form."""
        known = {f.name for f in dataclasses.fields(cls)}
        try:
            facts = cls(**{name: value for name, value in message.items() if name in known})
        except TypeError as error:
            raise ValueError(f"no facts of a node: {error}") from error
        if not all(isinstance(value, int) for value in (facts.index, facts.num_ranks, facts.pid)):
            raise ValueError("no facts of a node: index, num_ranks and pid must be whole numbers")
        return facts


def gather(spec: Spec, index: int, env: Mapping[str, str]) -> NodeFacts:
    """This node's facts. Raises nothing: what stands in the way of taking part is told as `trouble`."""
    trouble, gpus, num_ranks, device, found = "", [], 0, "cpu", versions()
    try:
        gpus = chosen_gpus(spec, network.visible_gpus(env))
        device = ("cuda" if gpus else "cpu") if spec.device == "auto" else spec.device
        granted = gpus if spec.where == "slurm" and env.get("CUDA_VISIBLE_DEVICES") else []
        num_ranks = count_ranks(spec, index, device, gpus if device == "cuda" else granted)
        network.check_interfaces(dict(env) | spec.env, spec.num_nodes > 1 and not spec.simulated)
        if spec.mpi:
            found[MPI] = mpi.library_here()
    except UserError as error:
        trouble = str(error)
    return NodeFacts(
        index=index,
        host=spec.hosts[index] if spec.simulated and index < len(spec.hosts) else socket.gethostname(),
        pid=os.getpid(),
        num_ranks=num_ranks,
        device=device,
        gpus=gpus,
        addresses=own_addresses(spec, index),
        versions=found,
        code_hash=code_hash(),
        cwd=str(Path.cwd()),
        num_cpus=len(os.sched_getaffinity(0)),
        clock_unix_s=time.time(),
        machine=machine(),
        trouble=trouble,
    )


def own_addresses(spec: Spec, index: int) -> list[str]:
    """Addresses under which other nodes may reach this one; of node 0 the one that was typed, where one was."""
    if spec.simulated:
        return ["127.0.0.1"]
    return [spec.dist_addr] if spec.dist_addr and index == 0 else network.reachable_addresses()


def chosen_gpus(spec: Spec, visible: list[str]) -> list[str]:
    """The visible GPUs, or those at the positions of `launch.devices`."""
    if spec.devices is None or not visible:
        return visible
    wrong = [position for position in spec.devices if not 0 <= position < len(visible)]
    if wrong:
        raise UserError(
            f"launch.devices = {spec.devices}: there is no GPU at position {wrong[0]}; "
            f"this node shows {len(visible)} ({','.join(visible)}), positions count from 0"
        )
    return [visible[position] for position in spec.devices]


def count_ranks(spec: Spec, index: int, device: str, gpus: Sequence[str]) -> int:
    """Ranks of this node: what was asked, else one per GPU (also one that Slurm granted a CPU run), else one.

    Raises UserError where GPUs are missing.
    """
    asked = spec.gpus_per_node[index] if spec.gpus_per_node and index < len(spec.gpus_per_node) else None
    if device != "cuda":
        return asked or len(spec.devices or gpus) or 1
    if gpus and asked and len(gpus) < asked:
        if spec.oversubscribe:  # with gloo: the config allows no other
            return asked
        raise UserError(
            f"launch.gpus_per_node = {asked}, but {len(gpus)} GPUs are visible ({','.join(gpus)}): more ranks than "
            "GPUs would share them, which nccl refuses (Duplicate GPU detected). Ask for fewer ranks or more GPUs "
            "(CUDA_VISIBLE_DEVICES, slurm.gpu_request); to share them on purpose, set launch.oversubscribe: true and "
            "launch.dist_backend: gloo; launch.device: cpu takes none"
        )
    if not gpus:
        raise UserError(
            f"{len(gpus)} GPUs are visible where launch.gpus_per_node = {asked or 'all'} asks for {asked or 'some'}; "
            "check CUDA_VISIBLE_DEVICES and what was asked of Slurm (slurm.gpu_request), or set launch.device: cpu"
        )
    return asked or len(gpus)


def machine() -> str:
    """What two processes share if, and only if, they run on one kernel with one set of interfaces."""
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {Path('/proc/self/ns/net').readlink()}"
    except OSError:
        return ""


def versions() -> dict[str, str]:
    """Of Python, this package, torch and what it computes with."""
    found = {"python": platform.python_version(), "trainpkg": trainpkg.__version__}
    for name in ("torch", "numpy", *NCCL_PACKAGES):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {"torch": "absent"} | found


def code_hash() -> str:
    """16 hex digits over the sources of this package as they lie on this node."""
    root = Path(trainpkg.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(str(path.relative_to(root)).encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def contradictions(spec: Spec, nodes: Sequence[NodeFacts]) -> list[str]:
    """Sentences on nodes that cannot train together, each naming the nodes; `nodes` are all that answered."""
    found = [f"node {node.index} ({node.host}): {node.trouble}" for node in nodes if node.trouble]
    found += [
        f"{node.host} says that it is node {node.index}, but the nodes are 0 to {spec.num_nodes - 1}"
        + _meant(spec, node)
        for node in nodes
        if not 0 <= node.index < spec.num_nodes
    ]
    for name in MUST_AGREE:
        found += differences(f"the version of {name}", nodes, [node.versions.get(name, "unknown") for node in nodes])
    same = "the code of trainpkg (is its folder shared, and the same on all nodes?)"
    found += differences(same, nodes, [node.code_hash for node in nodes])
    found += differences("the device", nodes, [node.device for node in nodes])
    return found + (_twice_on_one_machine(nodes) if spec.where == "typed" and not spec.simulated else [])


def _twice_on_one_machine(nodes: Sequence[NodeFacts]) -> list[str]:
    """Two commands typed on one machine would share its GPUs. Machines may bear one name, and share no kernel."""
    found = []
    places: dict[str, NodeFacts] = {}
    for node in nodes:
        other = places.setdefault(node.machine, node)
        if node.machine and other is not node:
            found.append(
                f"node {other.index} (process {other.pid}) and node {node.index} (process {node.pid}) are both on "
                f"{node.host}: type each node's command on its own machine, or say --local on all "
                "of them where this one is meant to be several nodes"
            )
    return found


def _meant(spec: Spec, node: NodeFacts) -> str:
    """The index that was meant where a node gave its first rank."""
    index, rest = divmod(node.index, max(1, node.num_ranks))
    if rest or not 0 <= index < spec.num_nodes:
        return ""
    return (
        f"; {node.index} looks like its first rank ({index} x {node.num_ranks}): the index counts nodes, here {index}"
    )


def warnings(nodes: Sequence[NodeFacts], clock_unix_s: float) -> list[str]:
    """Sentences on what looks wrong but ends nothing. `clock_unix_s` is the coordinator's."""
    found = []
    for node in nodes:
        skew = node.clock_unix_s - clock_unix_s
        if abs(skew) > MAX_CLOCK_SKEW_S:
            found.append(f"the clock of node {node.index} ({node.host}) is {skew:+.0f} s off the first node's")
        if node.num_ranks > node.num_cpus:
            found.append(f"node {node.index} ({node.host}) has {node.num_cpus} CPUs for {node.num_ranks} ranks")
    return found[:MAX_NAMED]


def differences(what: str, nodes: Sequence[NodeFacts], values: Sequence[str]) -> list[str]:
    """No sentence where all values are equal, else one with each value and the nodes that have it."""
    groups: dict[str, list[NodeFacts]] = defaultdict(list)
    for node, value in zip(nodes, values, strict=True):
        groups[value].append(node)
    if len(groups) < 2:
        return []
    # the smallest group first: it is the one to look at
    told = [f"{value} on {name_nodes(some)}" for value, some in sorted(groups.items(), key=lambda g: len(g[1]))]
    return [f"{what} differs: {'; '.join(told)}"]


def name_nodes(nodes: Sequence[NodeFacts]) -> str:
    """`node 1 (n2), node 3 (n4)`, cut after a few."""
    ordered = sorted(nodes, key=lambda node: node.index)
    named = [f"node {node.index} ({node.host})" for node in ordered[:MAX_NAMED]]
    return ", ".join(named) + (f" and {len(nodes) - MAX_NAMED} more" if len(nodes) > MAX_NAMED else "")
