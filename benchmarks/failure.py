"""A rank is killed: until all processes are gone, until the first step after a restart in place, and who is blamed.

`launch` beside torchrun on one machine, three ranks; the peer trains benchmarks/peers/plain.py, and for the
restart keeps its store apart from torchrun's, or it would not come back at all (torch 2.13, gloo). `loses a node`: a
real Slurm in namespaces of this machine (root, --full), as benchmarks.faults has it, whose 17 faults are in
docs/faults.md.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from benchmarks import ours, workload
from benchmarks.commands import Commands, Unsuccessful, folder, last_line, python
from benchmarks.faults_page import root_causes
from benchmarks.harness import Figure, Part, Row, Scale, interleaved
from benchmarks.launch import AGENT, PEERS, PID

RANKS, VICTIM = 3, 1
LIMIT_S = 300.0
SETTLE_S = 1.0  # into the even pace


def our_run(killed: Callable[..., Mapping[str, float]], restarts: int) -> Mapping[str, float]:
    with folder() as place:
        recipe = workload.recipe("conv", RANKS, steps=10**6)
        recipe |= {"logging": {"every_steps": 1, "eval_every_steps": 10**6}, "checkpoint": {"every_steps": 100}}
        config = ours.project(place / "project", recipe, {"gpus_per_node": RANKS, "max_restarts": restarts})
        with Commands([ours.command(config)]) as started:
            return killed(
                started,
                lambda generation: any(record["generation"] == generation for record in ours.records(config)),
                lambda: started.text + ours.said(config),
                lambda: bool(re.search(rf"rank {VICTIM}\b", last_line(started.text))),
            )


def their_run(killed: Callable[..., Mapping[str, float]], restarts: int) -> Mapping[str, float]:
    script = [str(PEERS / "plain.py"), "tiny", "ddp", "200000"]
    command = python("-m", AGENT, "--standalone", f"--nproc-per-node={RANKS}", f"--max-restarts={restarts}", *script)
    # With gloo the second life would find the first one's addresses in the agent's store, and fail.
    with Commands([command], {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"} if restarts else {}) as started:
        return killed(
            started,
            lambda generation: started.text.count("step 1 of") > generation,
            lambda: started.text,
            lambda: any(f"rank {VICTIM}," in cause for cause in root_causes(started.text)),
        )


def kill(started: Commands, stepped: Callable[[int], bool], said: Callable[[], str]) -> float:
    """After the first step; the clock's time of it."""
    started.until(lambda: stepped(0), LIMIT_S, "first step")
    time.sleep(SETTLE_S)
    found = re.findall(rf"rank {VICTIM} is process (\d+)", said())
    if not found:
        raise Unsuccessful(f"rank {VICTIM} did not say its process, of {len(PID.findall(said()))} that did")
    at_s = started.clock_s
    os.kill(int(found[0]), signal.SIGKILL)
    return at_s


def until_gone(
    started: Commands, stepped: Callable[[int], bool], said: Callable[[], str], right: Callable[[], bool]
) -> Mapping[str, float]:
    at_s = kill(started, stepped, said)
    while started.left():
        if started.clock_s - at_s > LIMIT_S:
            raise Unsuccessful(f"processes are left {LIMIT_S:.0f} s after the kill: {last_line(started.text)}")
        time.sleep(0.01)
    gone_s = started.clock_s - at_s
    started.wait(LIMIT_S, well=False)
    return {"gone_s": gone_s, "right": float(right())}


def until_again(
    started: Commands, stepped: Callable[[int], bool], said: Callable[[], str], right: Callable[[], bool]
) -> Mapping[str, float]:
    at_s = kill(started, stepped, said)
    return {"again_s": started.until(lambda: stepped(1), at_s + LIMIT_S, "first step after the restart") - at_s}


def lost_nodes(scale: Scale) -> Iterator[Row]:
    """One per round, met by each way in turn in a job of its own."""
    from benchmarks.faults import FAULTS, SRUN_PORTS, WAYS, play
    from tests.cluster.lab import Lab

    fault = next(fault for fault in FAULTS if fault.name == "a node loses power")
    with Lab(num_nodes=3, gpus_per_node=2, conf=SRUN_PORTS | {"SlurmdTimeout": fault.slurm_patience_s}) as lab:
        for number in range(1, scale.repetitions + 1):
            for way, found in play(lab, fault, dict.fromkeys(WAYS, 60.0)).items():
                row: Row = {"case": "loses a node", "way": way, "round": number, "load": found.load}
                row |= {"right": float(found.named_s is not None and not found.blamed)}
                row |= {"named_s": found.named_s} if found.named_s is not None else {}
                row |= {"gone_s": found.over_s} if found.over_s is not None else {"failed": "not over in time"}
                yield row


def measure(scale: Scale) -> Iterator[Row]:
    cases = {"SIGKILL of a rank": (until_gone, 0), "SIGKILL of a rank, one restart": (until_again, 1)}
    for case, (what, restarts) in cases.items():
        ways = {"launch": partial(our_run, what, restarts), "torchrun": partial(their_run, what, restarts)}
        yield from interleaved(case, ways, scale.repetitions, warm_up=False)
    if scale.full:
        from tests.cluster.machine import missing

        if lack := missing():
            print(f"loses a node: not measured: {lack}", flush=True)
        else:
            yield from lost_nodes(scale)


PART = Part(
    "failure",
    "Failures",
    "at most 0.2 x torchrun; all causes right",
    "launch",
    (
        Figure("named_s", "named", "s"),
        Figure("gone_s", "all processes gone", "s"),
        Figure("again_s", "first step after the restart", "s"),
        Figure("right", "cause named right", "share", None),
    ),
    measure,
)
