"""What is said at the start about the nodes' surroundings: addresses, threads, variables; and what looks wrong there.

Pure: the nodes' answers come in, lines for people go out. Secrets are masked on the nodes already.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from trainpkg import variables
from trainpkg.launch import facts
from trainpkg.launch.facts import NodeFacts
from trainpkg.launch.spec import Spec

UNSET = "not set"
T = TypeVar("T")


def describe(spec: Spec, nodes: Sequence[NodeFacts]) -> list[str]:
    """The first node, addresses, threads with their reason, and the variables that matter, one line per value."""
    first = nodes[0]
    some = [f"{node.host} {' '.join(node.addresses)}" for node in nodes[: facts.MAX_NAMED]]
    more = f" and {len(nodes) - facts.MAX_NAMED} more" if len(nodes) > facts.MAX_NAMED else ""
    lines = [f"first node {first.host}; addresses: {'; '.join(some)}{more}"]
    for (count, reason), group in _groups(nodes, [(node.threads, node.threads_reason) for node in nodes]):
        lines.append(f"threads per rank: {count} ({reason}) on {_names(nodes, group)}")
    for values, group in _groups(nodes, [tuple(sorted(node.variables.items())) for node in nodes]):
        told = " ".join(f"{name}={value}" for name, value in values) or "none of those of torch, NCCL and gloo"
        preset = f" (launch.preset: {spec.preset})" if spec.preset != "none" else ""
        lines.append(f"variables{preset} on {_names(nodes, group)}: {told}")
    return lines


def warnings(spec: Spec, nodes: Sequence[NodeFacts]) -> list[str]:
    """Sentences on what looks wrong but ends nothing."""
    found = [f"{_names(nodes, group)}: {text}" for text, group in _by_remark(nodes)]
    found += _cpus(spec, nodes)
    if spec.backend == "torchrun" and spec.ports is not None and len(nodes) > 1:
        found.append(
            "launch.port says which ports are open between nodes, but torchrun's c10d opens one more, of the kernel's "
            "choice, on the node of rank 0; launch.backend: torchrun-static needs no other"
        )
    if spec.preset != "none" and (spec.dist_backend == "gloo" or nodes[0].device == "cpu"):
        found.append(
            f"launch.preset: {spec.preset} has no effect here: its variables are NCCL's, and the ranks use gloo"
        )
    names = {name for node in nodes for name in node.variables if name.startswith(variables.LIBRARY_PREFIXES)}
    for name in sorted(names):
        found += facts.differences(name, nodes, [node.variables.get(name, UNSET) for node in nodes])
    for name in sorted({name for node in nodes for name in node.versions} - set(facts.MUST_AGREE)):
        versions = [node.versions.get(name, "unknown") for node in nodes]
        found += facts.differences(f"the version of {name}", nodes, versions)
    return found


def _cpus(spec: Spec, nodes: Sequence[NodeFacts]) -> list[str]:
    """Nodes whose processes may use fewer CPUs than were asked of Slurm for them."""
    found = []
    for node in nodes if spec.where == "slurm" else ():
        if node.num_cpus < spec.cpus_per_task:
            so = "all its work shares one core" if node.num_cpus == 1 else "its ranks share those"
            found.append(
                f"node {node.index} ({node.host}) may use {node.num_cpus} of the {spec.cpus_per_task} CPUs asked of "
                f"Slurm (slurm.cpus_per_task): {so}. A CPU binding of the site (TaskPlugin, SLURM_CPU_BIND) or fewer "
                "CPUs on that node are the usual reasons"
            )
    return found[: facts.MAX_NAMED]


def _by_remark(nodes: Sequence[NodeFacts]) -> Iterator[tuple[str, list[NodeFacts]]]:
    groups: dict[str, list[NodeFacts]] = defaultdict(list)
    for node in nodes:
        for text in node.remarks:
            groups[text].append(node)
    yield from groups.items()


def _groups(nodes: Sequence[NodeFacts], values: Iterable[T]) -> Iterator[tuple[T, list[NodeFacts]]]:
    """Each distinct value with the nodes that have it, the most frequent first."""
    groups: dict[T, list[NodeFacts]] = defaultdict(list)
    for node, value in zip(nodes, values, strict=True):
        groups[value].append(node)
    yield from sorted(groups.items(), key=lambda one: -len(one[1]))


def _names(nodes: Sequence[NodeFacts], some: Sequence[NodeFacts]) -> str:
    if len(some) == len(nodes):
        return "all nodes" if len(nodes) > 1 else "the node"
    return facts.name_nodes(some)
