"""Training throughput on two ranks of one thread: our trainer beside a tutorial's loop and frameworks.

All train the same model from the same weights on the same samples in the same order with the same AdamW (`workload`);
the sum over the final weights is kept with each row, and a way whose sum is another has failed. Rates are of the steps
after the first ones, by each loop's own clock; whole-process seconds stand apart.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import partial

from benchmarks import ours, workload
from benchmarks.commands import Commands, Unsuccessful, folder, python
from benchmarks.harness import Figure, Part, Plot, Row, Scale, interleaved
from benchmarks.launch import PEERS, torchrun

RANKS = 2
LIMIT_S = 600.0
SHORT = {"conv": 300, "gpt": 20}  # steps without --full
BRIEF = (("conv", "ddp"), ("gpt", "ddp"), ("gpt", "fsdp"))  # without --full; the conv net without frameworks
TOLERANCE = 1e-3  # of the sum over the weights: Trainer decays no biases and norms
PEERS_OF = {
    ("conv", "ddp"): ("plain loop", "plain loop, tuned", "Lightning", "accelerate"),
    ("vit", "ddp"): ("plain loop", "Lightning", "accelerate"),
    ("gpt", "ddp"): ("plain loop", "plain loop, tuned", "Lightning", "accelerate", "HF Trainer"),
    ("conv", "fsdp"): ("plain loop", "Lightning"),
    ("vit", "fsdp"): ("plain loop", "Lightning"),
    ("gpt", "fsdp"): ("plain loop", "Lightning"),
}


def train_ours(case: str, strategy: str, steps: int | None) -> Mapping[str, float]:
    with folder() as place:
        recipe = workload.recipe(case, RANKS, steps, as_bare=True, strategy=strategy)
        config = ours.project(place / "project", recipe, {"gpus_per_node": RANKS})
        with Commands([ours.command(config)]) as started:
            took_s = started.wait(LIMIT_S)
        work = workload.Work(case, RANKS, steps)
        records = {record["step"]: record for record in ours.records(config)}
        first, last = records[work.before], records[work.steps]
        rate = (last["samples"] - first["samples"]) / (last["time_s"] - first["time_s"])
        return {"samples_per_s": rate, "whole_s": took_s, "weights": ours.weights(config)}


def train_theirs(way: str, case: str, strategy: str, steps: int | None) -> Mapping[str, float]:
    count = [str(steps)] if steps else []
    script = {
        "plain loop": ["plain.py", case, strategy, *count],
        "plain loop, tuned": ["plain.py", case, strategy, *count, "--tuned"],
        "accelerate": ["accelerate_loop.py", case, *count],
        "HF Trainer": ["trainer_loop.py", case, *count],
    }
    if way == "Lightning":
        commands = [python(str(PEERS / "lightning_loop.py"), case, strategy, *count, "--ranks", str(RANKS))]
    else:
        name, *rest = script[way]
        commands = torchrun("static", [str(PEERS / name), *rest], (1, RANKS))
    with Commands(commands) as started:
        took_s = started.wait(LIMIT_S, well=False)
        told = [line for line in started.text.splitlines() if line.startswith('{"samples_per_s"')]
        if not told:
            started.wait(LIMIT_S)
            raise Unsuccessful("it told no rate")
    return {**json.loads(told[-1]), "whole_s": took_s}


def measure(scale: Scale) -> Iterator[Row]:
    for (case, strategy), peers in PEERS_OF.items():
        if (case, strategy) not in (PEERS_OF if scale.full else BRIEF) or (scale.tiny and case != "gpt"):
            continue
        if case == "conv" and not scale.full:
            peers = peers[:2]
        steps = 2 * workload.TELL_STEPS[case] if scale.tiny else None if scale.full else SHORT[case]
        ways = {"ours": partial(train_ours, case, strategy, steps)}
        ways |= {way: partial(train_theirs, way, case, strategy, steps) for way in peers}
        weights: dict[int, float] = {}
        for row in interleaved(f"{case} {strategy}", ways, scale.repetitions, warm_up=False):
            found = row.pop("weights", None)
            if found is not None:
                reference = weights.setdefault(row["round"], found)
                if abs(found / reference - 1) > TOLERANCE:
                    row["failed"] = f"other weights in the end: {found} instead of {reference}"
            yield row


PART = Part(
    "throughput",
    "Training throughput, 2 ranks x 1 thread",
    "at least 1.3 x the plain loop on the conv net, 1.0 x on the GPT, ahead of every framework",
    "ours",
    (Figure("samples_per_s", "samples per second", "1/s", "more"), Figure("whole_s", "whole command", "s")),
    measure,
    (Plot("bars", "samples_per_s", "plain loop"),),
)
