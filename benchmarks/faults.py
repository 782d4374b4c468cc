"""Faults on a real Slurm: how soon who says what, `launch` beside stock torchrun. Writes docs/faults.md.

`python -m benchmarks.faults [--only WORD]` needs root and what tests/cluster needs. It brings up a Slurm of three nodes
in namespaces of this machine and breaks it, one fault after the other, under a job of two nodes x two ranks. Each way
gets a job of its own for each fault, and CAP_S seconds from the fault on (where the fault was there before the start:
from the time that a healthy start takes). What they said stays in /tmp/fault-*.log. Nothing here passes or fails.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from benchmarks.faults_page import HEALTHY, Result, page
from tests.cluster.lab import Lab
from tests.cluster.machine import CHECKOUT
from tests.cluster.test_network import DOCKER, RENAME, broken, firewall, hosts_file, listening

PAGE = CHECKOUT / "docs" / "faults.md"
CAP_S = 90.0
PORT = 29_500  # what tutorials take
STEPPED = re.compile(r"^step \d+ of", re.MULTILINE)
SRUN_PORTS = {"SrunPortRange": "61000-62000"}  # above those that the firewalls of this page close
LEFT = r"trainpkg|torch|tiny_ddp|launch\.zygote|resource_tracker"
RECIPE: dict[str, Any] = {
    "task": "images",
    "model": {"name": "conv", "width": 8},
    "data": {"name": "digits"},
    "train": {"max_steps": 1_000_000, "global_batch": 64},
    "logging": {"eval_every_steps": 1_000_000},
    "checkpoint": {"every_steps": 1_000_000},
    "slurm": {"cpus_per_task": 2},
}
LAUNCH = {"where": "slurm", "nodes": 2, "gpus_per_node": 2, "device": "cpu", "max_restarts": 0}
NODE_2 = r"node 1 \(n2\b|\b(node|on) n2\b|\bn2:|host\s*:? n2\b"
FIREWALL = rf"firewall|\bn1(:|, ){PORT}\b"  # or the place that cannot be reached
BOTH = ("n1", "n2")


class Job:
    """A batch job of two nodes that starts its command when told to; what it has said, and when what was said first."""

    def __init__(self, lab: Lab, folder: Path, command: str) -> None:
        self.lab, self.folder = lab, folder
        script = (
            f"cd {CHECKOUT}; export OMP_NUM_THREADS=1\nwhile [ ! -e {folder}/go ]; do sleep 0.1; done\n"
            f"{command}\necho $? > {folder}/status"
        )
        self.id = lab.sbatch(
            script, f"--output={folder}/out", "--nodes=2", "--nodelist=n1,n2", "--ntasks-per-node=1",
            "--cpus-per-task=2", "--no-requeue", "--time=60", cwd=folder,
        )  # fmt: skip
        lab.wait_job(self.id, "RUNNING")

    def go(self) -> float:
        (self.folder / "go").touch()
        return time.monotonic()

    @property
    def output(self) -> str:
        path = self.folder / "out"
        return path.read_text(errors="replace") if path.exists() else ""

    @property
    def ended(self) -> bool:
        """Whether the command has, or Slurm has ended the job."""
        return (self.folder / "status").exists() or self.lab.job(self.id)["JobState"] != "RUNNING"

    def pid(self, rank: int) -> int:
        """As its node counts."""
        logs = "".join(path.read_text() for path in self.folder.glob("results/runs/*/launch/1/0/node-*.log"))
        found = re.search(rf"rank {rank} is process (\d+)", logs + self.output)
        assert found, self.output
        return int(found[1])


Way = Callable[[Path, "Fault"], str]
Break = Callable[[Lab, Job], contextlib.AbstractContextManager[None]]


@dataclass(frozen=True)
class Fault:
    """`does` breaks something and mends it afterwards; `right`: how a verdict names it."""

    name: str
    does: Break
    right: str
    while_training: bool = False
    launch: tuple[tuple[str, Any], ...] = ()  # what has to be said to `launch` so that the fault meets it
    before: str = ""  # a line of shell that each node runs first
    env: str = ""  # what scripts on such a site export
    slurm_patience_s: int = 300  # SlurmdTimeout: a node whose daemon is silent for so long is DOWN; Slurm's default


def wrapped(folder: Path, fault: Fault) -> str:
    """A prefix that does the fault's line before the command."""
    (folder / "node.sh").write_text(f'{fault.before}\nexec "$@"\n')
    return f"bash {folder}/node.sh"


def launch(folder: Path, fault: Fault) -> str:
    """`trainpkg launch`, as the workflow's rule has it, with the trainer."""
    keys = LAUNCH | dict(fault.launch) | ({"wrapper": wrapped(folder, fault)} if fault.before else {})
    recipes = folder / "recipes"
    recipes.mkdir()
    (recipes / "tiny.yaml").write_text(yaml.safe_dump(RECIPE | {"launch": keys}))
    (folder / "runs.tsv").write_text("run\trecipe\ntiny\ttiny\n")
    tree = {"results_dir": f"{folder}/results", "sheet": f"{folder}/runs.tsv", "recipes": str(recipes)}
    (folder / "config.yaml").write_text(yaml.safe_dump(tree))
    run = f"--config {folder}/config.yaml --run tiny --out {folder}/results/runs/tiny/train.json"
    return f"{fault.env}{sys.executable} -m trainpkg launch train {run}"


def torchrun(folder: Path, fault: Fault) -> str:
    """As tutorials start it under Slurm."""
    first = '$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)'
    command = (
        f"{sys.executable} -m torch.distributed.run --nnodes=2 --nproc-per-node=2 --rdzv-id=$SLURM_JOB_ID "
        f"--rdzv-backend=c10d --rdzv-endpoint={first}:{PORT} {CHECKOUT}/benchmarks/tiny_ddp.py"
    )
    command = f"{wrapped(folder, fault)} {command}" if fault.before else command
    return f"{fault.env}srun --nodes=2 --ntasks-per-node=1 --cpus-per-task=2 {command}"


WAYS: dict[str, Way] = {"launch": launch, "torchrun": torchrun}


# --- what is broken ---


@contextlib.contextmanager
def nothing(lab: Lab, job: Job) -> Iterator[None]:
    yield


def signalled(signum: int) -> Break:
    @contextlib.contextmanager
    def rank_3(lab: Lab, job: Job) -> Iterator[None]:
        lab.kill("n2", job.pid(3), signum)
        yield

    return rank_3


def done_to_n2(*names: str) -> Break:
    """Methods of the lab; `mend` undoes them."""

    @contextlib.contextmanager
    def broken_node(lab: Lab, job: Job) -> Iterator[None]:
        for name in names:
            getattr(lab, name)("n2")
        yield

    return broken_node


def on(*parts: Callable[[Lab], contextlib.AbstractContextManager[None]]) -> Break:
    @contextlib.contextmanager
    def all_of_them(lab: Lab, job: Job) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for part in parts:
                stack.enter_context(part(lab))
            yield

    return all_of_them


def debian_hosts(node: str) -> Callable[[Lab], contextlib.AbstractContextManager[None]]:
    other, address = {"n1": ("n2", "10.77.0.12"), "n2": ("n1", "10.77.0.11")}[node]
    return lambda lab: hosts_file(lab, node, f"127.0.1.1 {node}\n{address} {other}")


def renamed(lab: Lab) -> contextlib.AbstractContextManager[None]:
    return broken(lab, "n2", RENAME.format(old="eth0", new="ens5"), RENAME.format(old="ens5", new="eth0"))


FAULTS = [
    Fault(HEALTHY, nothing, ""),
    Fault("SIGKILL of a rank", signalled(signal.SIGKILL), r"rank\s*:? 3\b", while_training=True),
    Fault("SIGSTOP of a rank", signalled(signal.SIGSTOP), r"rank\s*:? 3\b", while_training=True),
    Fault("link of a node down, without a reset", done_to_n2("link_down"), NODE_2, while_training=True),
    Fault("a node loses power", done_to_n2("link_down", "crash"), NODE_2, while_training=True),
    Fault(
        "slurmd of a node stopped in training (SlurmdTimeout 30 s)", done_to_n2("stop_daemon"), NODE_2,
        while_training=True, slurm_patience_s=30,
    ),
    Fault("slurmd of a node stopped before the start", done_to_n2("stop_daemon"), NODE_2),
    Fault("a node never starts its part", nothing, NODE_2, before="[ $SLURM_NODEID = 0 ] || sleep 600"),
    Fault(
        f"port {PORT} taken on the first node", on(lambda lab: listening(lab, "n1", PORT)), rf"\b{PORT}\b",
        launch=(("port", str(PORT)),),
    ),
    Fault("each node's own name is 127.0.1.1", on(debian_hosts("n1"), debian_hosts("n2")), r"127\.0\.1\.1"),
    Fault(
        "docker0 with one address on all nodes",
        on(*(lambda lab, n=n: broken(lab, n, DOCKER, "ip link del docker0") for n in BOTH)), "",
    ),
    Fault("interfaces of other names (eth0, ens5)", on(renamed), ""),
    Fault(
        "the same, GLOO_SOCKET_IFNAME=eth0 in the environment", on(renamed), rf"{NODE_2}|eth0",
        env="GLOO_SOCKET_IFNAME=eth0 ",
    ),
    Fault(
        "firewall of the first node drops ports 10000-32767",
        on(lambda lab: firewall(lab, "n1", "tcp dport 10000-32767 drop")), FIREWALL,
    ),
    Fault(
        "the same, but it rejects",
        on(lambda lab: firewall(lab, "n1", "tcp dport 10000-32767 reject with icmpx admin-prohibited")), FIREWALL,
    ),
    Fault(
        "firewall of the second node drops ports 32768-60999",
        on(lambda lab: firewall(lab, "n2", "tcp dport 32768-60999 drop")), "firewall",
    ),
    Fault(
        "firewalls of both nodes do",
        on(*(lambda lab, n=n: firewall(lab, n, "tcp dport 32768-60999 drop") for n in BOTH)), "firewall",
    ),
]  # fmt: skip


def watch(job: Job, fault: Fault, cap_s: float) -> Result:
    """Start, break, look until it is over, trains in spite of it, or the time is up."""
    found, begin, heard = Result(cap_s), 0.0, 0
    with contextlib.ExitStack() as stack:
        if not fault.while_training:
            stack.enter_context(fault.does(job.lab, job))
        begin = job.go()
        if fault.while_training:
            job.lab.wait_until(lambda: bool(STEPPED.search(job.output)), "the first step", 240)
            time.sleep(3.0)  # into the even pace
            heard, begin = len(job.output), time.monotonic()
            stack.enter_context(fault.does(job.lab, job))
        while (now_s := time.monotonic() - begin) < cap_s:
            told = job.output[heard:]
            if found.named_s is None and fault.right and re.search(fault.right, told):
                found.named_s = now_s
            if not fault.while_training and STEPPED.search(told):
                found.trains_s = now_s
                break
            if found.ended_s is None and job.ended:
                found.ended_s = now_s
            if found.ended_s is not None and not job.lab.processes(LEFT):
                found.over_s = now_s
                break
            time.sleep(0.1)
        found.hear(job.output[heard:], fault.right)
    return found


def play(lab: Lab, fault: Fault, healthy: dict[str, float]) -> dict[str, Result]:
    """One fault, met by each way in turn. `healthy`: seconds that each needs to its first step."""
    results = {}
    for way, command in WAYS.items():
        folder = lab.shared_dir / f"{way}-{time.monotonic_ns()}"
        folder.mkdir()
        job = Job(lab, folder, command(folder, fault))
        found = results[way] = watch(job, fault, CAP_S + (0.0 if fault.while_training else healthy[way]))
        found.load = os.getloadavg()[0]
        print(f"{fault.name}: {way}: {found.cells}: {found.verdict}", flush=True)
        shutil.copy(folder / "out", Path(tempfile.gettempdir()) / f"fault-{fault.name.replace(' ', '-')}-{way}.log")
        with contextlib.suppress(TimeoutError):
            lab.mend()
        lab.wait_jobs_gone(300)  # Slurm asks a node that was away only now and then whether it has ended the job
        lab.mend()
        if fault.name == HEALTHY and found.trains_s is not None:
            healthy[way] = found.trains_s
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description="Faults on a real Slurm, launch beside torchrun.")
    parser.add_argument("--only", default="", help="faults whose name has this word; docs/faults.md is left alone then")
    only = parser.parse_args().only
    chosen = [fault for fault in FAULTS if only in fault.name]
    rows, healthy = [], dict.fromkeys(WAYS, 60.0)
    for patience_s in sorted({fault.slurm_patience_s for fault in chosen}, reverse=True):
        with Lab(num_nodes=3, gpus_per_node=2, conf=SRUN_PORTS | {"SlurmdTimeout": patience_s}) as lab:
            for fault in (fault for fault in chosen if fault.slurm_patience_s == patience_s):
                rows.append((fault.name, play(lab, fault, healthy)))
            slurm = lab.run(["sinfo", "--version"]).stdout.strip()
    if not only:
        PAGE.write_text(page(rows, slurm, CAP_S))


if __name__ == "__main__":
    main()
