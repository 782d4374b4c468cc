"""From the command to the first training step on all ranks, and what a rank holds of memory: `launch` beside others.

The peers train one linear layer and import nothing but torch or their framework (`workload`'s case tiny); ours is the
whole trainer on digits, data and all. `torchrun static, our trainer` is that trainer under torchrun: what the launcher
alone is good for. A step is over on all ranks when rank 0 has done it, since it contains a collective of all.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from benchmarks import ours, workload
from benchmarks.commands import ROOT, Commands, Unsuccessful, folder, python
from benchmarks.commands import private_mb as private_of
from benchmarks.harness import Figure, Part, Plot, Row, Scale, interleaved

LIMIT_S = 240.0
PEERS = ROOT / "benchmarks" / "peers"
PID = re.compile(r"rank \d+ is process (\d+)")
Shape = tuple[int, int]  # nodes, ranks of each
AGENT = "torch.distributed.run"


def port() -> int:
    """Below the ephemeral range."""
    return random.randint(20_000, 32_000)


def torchrun(kind: str, program: list[str], shape: Shape) -> list[list[str]]:
    """As its own pages have it: static with the first node's address, c10d with `--standalone` or an endpoint."""
    nodes, ranks = shape
    place, common = port(), [f"--nproc-per-node={ranks}"]
    if kind == "c10d" and nodes == 1:
        return [python("-m", AGENT, "--standalone", *common, *program)]
    if kind == "c10d":
        meets = [
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint=127.0.0.1:{place}",
            "--rdzv-id=bench",
            "--local-addr=127.0.0.1",
        ]
        return [python("-m", AGENT, f"--nnodes={nodes}", *common, *meets, *program) for _ in range(nodes)]
    meets = [f"--nnodes={nodes}", "--master-addr=127.0.0.1", f"--master-port={place}"]
    return [python("-m", AGENT, *common, *meets, f"--node-rank={k}", *program) for k in range(nodes)]


def spawned(steps: int, shape: Shape) -> list[list[str]]:
    nodes, ranks = shape
    script, place = [str(PEERS / "plain.py"), "tiny", "ddp", str(steps)], str(port())
    options = ["--spawn", str(ranks), "--nodes", str(nodes), "--port", place]
    return [python(*script, *options, "--node", str(k)) for k in range(nodes)]


def accelerate(steps: int, shape: Shape) -> list[list[str]]:
    """`--cpu` starts several processes by MPI alone; `--multi_gpu` is its launcher, on CPUs as well."""
    nodes, ranks = shape
    program = [str(PEERS / "accelerate_loop.py"), "tiny", str(steps)]
    options = [
        "--multi_gpu", f"--num_processes={nodes * ranks}", f"--num_machines={nodes}", "--mixed_precision=no",
        "--dynamo_backend=no", "--main_process_ip=127.0.0.1", f"--main_process_port={port()}",
    ]  # fmt: skip
    return [python("-m", "accelerate.commands.launch", *options, f"--machine_rank={k}", *program) for k in range(nodes)]


def lightning(steps: int, shape: Shape) -> list[list[str]]:
    nodes, ranks = shape
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port())}
    program = python(str(PEERS / "lightning_loop.py"), "tiny", "ddp", str(steps))
    program += ["--ranks", str(ranks), "--nodes", str(nodes)]
    if nodes == 1:
        return [program]
    variables = [f"{name}={value}" for name, value in place.items()]
    return [["env", *variables, f"NODE_RANK={k}", *program] for k in range(nodes)]


def plain(kind: str, steps: int, shape: Shape) -> list[list[str]]:
    return torchrun(kind, [str(PEERS / "plain.py"), "tiny", "ddp", str(steps)], shape)


WAYS: dict[str, Callable[[int, Shape], list[list[str]]]] = {
    "torchrun static": partial(plain, "static"),
    "torchrun c10d": partial(plain, "c10d"),
    "mp.spawn": spawned,
    "accelerate launch": accelerate,
    "Lightning": lightning,
}


TRAINER = "torchrun static, our trainer"
FULL: dict[Shape, tuple[str, ...]] = {
    (1, 2): tuple(WAYS),
    (1, 4): (*WAYS, TRAINER),
    (1, 8): ("torchrun static", "mp.spawn", "accelerate launch"),
    (3, 2): ("torchrun static", "torchrun c10d", "accelerate launch"),
}
BRIEF: dict[Shape, tuple[str, ...]] = {  # without --full: every peer at one shape, torchrun at all
    (1, 2): ("torchrun static", "mp.spawn", "accelerate launch"),
    (1, 4): ("torchrun static", "Lightning"),
    (1, 8): ("torchrun static",),
    (3, 2): ("torchrun static",),
}


def theirs(way: str, shape: Shape) -> Mapping[str, float]:
    return clocked(WAYS[way](1, shape), lambda: "", lambda: False)


def start_ours(shape: Shape, under: str = "") -> Mapping[str, float]:
    """Our trainer by `launch`, or `under` torchrun."""
    nodes, ranks = shape
    with folder() as place:
        recipe = workload.recipe("conv", nodes * ranks, steps=1)
        recipe["logging"] = {"every_steps": 1, "eval_every_steps": 10**6}
        config = ours.project(place / "project", recipe, {"nodes": nodes, "gpus_per_node": ranks})
        program = ["-m", "--", "trainpkg", "train", *ours.arguments(config)]
        commands = torchrun("static", program, shape) if under else [ours.command(config)]
        metrics = ours.run_dir(config) / "metrics.jsonl"
        return clocked(commands, lambda: ours.said(config), lambda: metrics.exists() and metrics.stat().st_size > 0)


def clocked(commands: list[list[str]], said: Callable[[], str], stepped: Callable[[], bool]) -> Mapping[str, float]:
    """Seconds to the first all-reduce, the first step and the end; `said`: what is written besides the output."""
    with Commands(commands) as started:
        joined = started.until(lambda: "ranks joined" in started.text or stepped(), LIMIT_S, "all-reduce")
        first = started.until(lambda: "step 1 of" in started.text or stepped(), LIMIT_S, "first step")
        return {"joined_s": joined, "step_s": first, "end_s": started.wait(LIMIT_S)}


def memory(way: str, shape: Shape) -> Mapping[str, float]:
    """Private memory per rank after the first step, of a training that goes on."""
    with folder() as place:
        nodes, ranks = shape
        if way == "launch":
            recipe = workload.recipe("conv", nodes * ranks, steps=10**6)
            recipe["logging"] = {"every_steps": 1, "eval_every_steps": 10**6}
            config = ours.project(place / "project", recipe, {"nodes": nodes, "gpus_per_node": ranks})
            commands, said = [ours.command(config)], lambda: ours.said(config)
        else:
            commands, said = WAYS[way](200_000, shape), lambda: ""
        with Commands(commands) as started:
            everything = lambda: started.text + said()  # noqa: E731
            started.until(lambda: "step 1 of" in everything() or "step 1/" in everything(), LIMIT_S, "first step")
            pids = sorted({int(pid) for pid in PID.findall(everything())})
            if len(pids) != nodes * ranks:
                raise Unsuccessful(f"{len(pids)} of {nodes * ranks} ranks said their process")
            found = [private_of(pid) for pid in pids]
            return {"private_mb": sum(found) / len(found)}


def measure(scale: Scale) -> Iterator[Row]:
    chosen = {(1, 2): tuple(WAYS)} if scale.tiny else FULL if scale.full else BRIEF
    for shape, peers in chosen.items():
        nodes, ranks = shape
        case, size = f"{nodes} x {ranks}", ranks if nodes == 1 else None
        ways = {"launch": partial(start_ours, shape)}
        ways |= {way: partial(theirs, way, shape) for way in peers if way != TRAINER}
        if TRAINER in peers:
            ways[TRAINER] = partial(start_ours, shape, "torchrun")
        warm_up = shape == (1, 2) and scale.full
        yield from interleaved(case, ways, scale.repetitions, warm_up=warm_up, size=size)
    shape, peers = ((1, 4), tuple(WAYS)) if scale.full else ((1, 2), ("torchrun static",))
    ways = {way: partial(memory, way, shape) for way in ("launch", *peers)}
    yield from interleaved(f"{shape[0]} x {shape[1]}, memory", ways, 1, warm_up=False)


PART = Part(
    "launch",
    "From the command to the first training step",
    "at most 0.5 x torchrun at 4 ranks, falling with more",
    "launch",
    (
        Figure("joined_s", "first all-reduce", "s"),
        Figure("step_s", "first step", "s"),
        Figure("end_s", "end of a run of one step", "s"),
        Figure("private_mb", "private memory per rank", "MB"),
    ),
    measure,
    (Plot("ratio", "step_s", "torchrun static", "ranks on one node"),),
)
