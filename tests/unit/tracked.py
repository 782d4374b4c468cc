"""Tells a tracker of one attempt, and reads back with the tracker's own package: `tracked.py NAME DIR ATTEMPT`.

A process of its own per attempt, as in training. The last one prints what is there as JSON: the runs, and the losses by
step.
"""

from __future__ import annotations

import json
import os
import sqlite3
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from trainpkg import sheet
from trainpkg.runtime import trackers

RUN_DIR = Path("results/runs/a")
ATTEMPTS = {1: ((10, 3.0), (20, 2.0), (30, 9.0)), 2: ((30, 1.5), (40, 1.0))}  # the second goes on from step 20


def warn(text: str) -> None:
    sys.exit(f"warning: {text}")


def tell(attempt: int) -> None:
    RUN_DIR.mkdir(parents=True, exist_ok=True)
    ctx: Any = SimpleNamespace(is_main=True, warn=warn)
    tracker = trackers.build(ctx, sheet.load({}).runs["a"], RUN_DIR)
    for step, loss in ATTEMPTS[attempt]:
        record = {"kind": "train", "step": step, "loss": loss, "lr": None, "layers": {"rest": {"grad_norm": 0.5}}}
        tracker.metrics(step, trackers.numbers(record))
    tracker.metrics(step, trackers.numbers({"kind": "eval", "step": step, "metrics": {"accuracy": 0.25 * attempt}}))
    tracker.close("again" if attempt == 1 else "finished")


def of_tensorboard() -> tuple[list[str], list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(RUN_DIR / "tensorboard"))
    events.Reload()
    assert events.Scalars("eval/accuracy")[-1].value == 0.5
    return ["a"], [(one.step, one.value) for one in events.Scalars("train/loss")]


def of_mlflow() -> tuple[list[str], list[tuple[int, float]]]:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=Path("results/mlruns").resolve().as_uri())
    experiment = client.get_experiment_by_name("r")
    assert experiment is not None
    runs = client.search_runs([experiment.experiment_id])
    [run] = runs
    assert run.info.status == "FINISHED"
    assert run.data.params["optim.lr"] == "0.001" and "launch.nodes" not in run.data.params
    assert run.data.metrics["train/layers/rest/grad_norm"] == 0.5
    history = client.get_metric_history(run.info.run_id, "train/loss")
    return [str(run.info.run_name)], [(one.step, one.value) for one in history]


def wandb_records(data: bytes) -> Iterator[bytes]:
    """The records of a .wandb file: after 7 bytes LevelDB's log format, in blocks of 32 KiB."""
    position, whole = 7, b""
    while position + 7 <= len(data):
        if 32_768 - position % 32_768 < 7:
            position += 32_768 - position % 32_768
            continue
        length, kind = struct.unpack_from("<HB", data, position + 4)
        whole += data[position + 7 : position + 7 + length]
        position += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            yield whole
            whole = b""


def of_wandb() -> tuple[list[str], list[tuple[int, float]]]:
    from wandb.proto.wandb_internal_pb2 import Record

    names, losses = [], []
    for path in sorted((RUN_DIR / "wandb").glob("offline-run-*/run-*.wandb")):
        for data in wandb_records(path.read_bytes()):
            record = Record()
            record.ParseFromString(data)
            if record.HasField("run"):
                names.append((record.run.display_name, record.run.run_id))
            row = {item.key or item.nested_key[0]: item.value_json for item in record.history.item}
            if "train/loss" in row:
                losses.append((int(json.loads(row["step"])), float(row["train/loss"])))
    return [name for name, _ in sorted(set(names))], losses


def of_trackio() -> tuple[list[str], list[tuple[int, float]]]:
    with sqlite3.connect(RUN_DIR / "trackio/trainpkg.db") as database:
        rows = database.execute("select run_name, step, metrics from metrics order by id").fetchall()
    told = [(name, step, json.loads(metrics)) for name, step, metrics in rows]
    names = {name.rpartition("-")[0] for name, _, _ in told}
    assert len({name for name, _, _ in told}) == 1
    return sorted(names), [(step, metrics["train/loss"]) for _, step, metrics in told if "train/loss" in metrics]


if __name__ == "__main__":
    tracker_name, number = sys.argv[1], int(sys.argv[2])
    tell(number)
    if number == max(ATTEMPTS):
        print(json.dumps(globals()[f"of_{tracker_name}"]()), flush=True)
    os._exit(0)  # as a rank ends
