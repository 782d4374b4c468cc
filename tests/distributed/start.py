"""Starts the ranks of one stage as plain processes, with the environment that the launcher would give them."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from trainpkg.config import Run
from trainpkg.runtime import rank

TINY: dict[str, dict[str, Any]] = {
    "digits": {
        "run": "digits",
        "recipe": "tiny",
        "task": "images",
        "model": {"name": "conv", "width": 8, "dropout": 0.0},
        "data": {"name": "digits"},
        "optim": {"lr": 3e-3, "warmup_steps": 2},
        "train": {"max_steps": 8, "global_batch": 48},
        "checkpoint": {"every_steps": 4},
        "logging": {"every_steps": 2, "eval_every_steps": 8},
    },
    "gpt": {
        "run": "gpt",
        "recipe": "tiny",
        "task": "language",
        "model": {"name": "gpt", "dim": 16, "depth": 2, "heads": 2, "context": 16},
        "data": {"name": "python_text", "max_bytes": 60_000, "validation_fraction": 0.1},
        "optim": {"lr": 3e-3, "warmup_steps": 2},
        "train": {"max_steps": 8, "global_batch": 24},
        "checkpoint": {"every_steps": 4},
        "logging": {"every_steps": 2, "eval_every_steps": 8},
    },
}


def config(base: str = "digits", **overrides: Any) -> Run:
    """A tiny run; overrides are dotted keys with `__` for the dot."""
    tree: dict[str, Any] = json.loads(json.dumps(TINY[base]))
    for key, value in overrides.items():
        *sections, name = key.split("__")
        place = tree
        for section in sections:
            place = place.setdefault(section, {})
        place[name] = value
    return Run.model_validate(tree)


def free_port() -> int:
    """A port below the ephemeral range: one inside it can be handed to a client that connects to itself."""
    while True:
        port = random.randint(20000, 32000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


# One process imports torch once and forks all ranks of all tests, as the launcher's fork server does.
_forkserver = multiprocessing.get_context("forkserver")
_forkserver.set_forkserver_preload(
    ["torch", "torch._dynamo", "yaml", "trainpkg.train", "trainpkg.smoke", "trainpkg.runtime.rank", __name__]
)


def _enter(log: str, env: dict[str, str], before: Callable[[], None] | None) -> None:
    os.setpgid(0, 0)
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]  # or it could have no workers
    os.environ.clear()
    os.environ.update(env)
    for number, path in ((0, os.devnull), (1, log), (2, log)):
        os.dup2(os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644), number)
    if before is not None:
        before()
    rank.main()


@dataclass
class Ranks:
    """Running ranks of one stage."""

    run_dir: Path
    processes: list[Any] = field(default_factory=list)
    logs: list[Path] = field(default_factory=list)
    reports: list[dict[str, Any]] = field(default_factory=list)

    def wait(self, timeout_s: float = 60) -> list[int]:
        """Exit statuses; kills all and fails the test after the timeout."""
        end = time.monotonic() + timeout_s
        for process in self.processes:
            process.join(max(end - time.monotonic(), 0.1))
        hanging = [process for process in self.processes if process.exitcode is None]
        for process in hanging:
            process.kill()
            process.join()
        assert not hanging, f"{len(hanging)} ranks hang:\n{self.text()}"
        return [process.exitcode for process in self.processes]

    def text(self) -> str:
        return "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')}" for log in self.logs if log.exists())

    def events(self, name: str) -> list[dict[str, Any]]:
        return [report for report in self.reports if report["event"] == name]

    def wait_for(self, condition: Callable[[], bool], timeout_s: float = 60) -> None:
        end = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < end, self.text()
            time.sleep(0.01)

    def wait_for_step(self, step: int, timeout_s: float = 60) -> None:
        end = time.monotonic() + timeout_s
        while not any(report["step"] >= step for report in self.events("step")):
            assert time.monotonic() < end, f"step {step} not reached:\n{self.text()}"
            assert all(process.exitcode is None for process in self.processes), self.text()
            time.sleep(0.01)


def start(
    run: Run,
    run_dir: Path,
    num_ranks: int,
    stage: str = "train",
    attempt: int = 1,
    generation: int = 0,
    nodes: list[int] | None = None,
    before: Callable[[], None] | None = None,
    env: dict[str, str] | None = None,
    plan_changes: dict[str, Any] | None = None,
) -> Ranks:
    """Start ranks; `nodes` gives their number per node (default: one node), `before` runs first in each rank."""
    nodes = nodes or [num_ranks]
    launch_dir = run_dir / "launch" / str(attempt)
    generation_dir = launch_dir / str(generation)
    generation_dir.mkdir(parents=True, exist_ok=True)
    tree = {**run.model_dump(mode="json"), "fingerprint": run.fingerprint()}
    (run_dir / "config.yaml").write_text(yaml.safe_dump(tree))
    port = free_port()
    plan = {
        "world_size": num_ranks,
        "nodes": [
            {"host": f"sim{i}", "index": i, "rank_offset": sum(nodes[:i]), "num_ranks": n} for i, n in enumerate(nodes)
        ],
        "master_addr": "127.0.0.1",
        "master_port": port,
        **(plan_changes or {}),
    }
    (generation_dir / "plan.json").write_text(json.dumps(plan))
    out = run_dir / {"train": "train.json", "evaluate": "evaluation.json", "smoke": "smoke.json"}[stage]
    spec = {"stage": stage, "run": run.run, "run_dir": str(run_dir), "out": str(out), "attempt": attempt}
    spec |= {"config_path": str(run_dir / "config.yaml"), "launch_dir": str(launch_dir), "code_hash": "0123"}
    (launch_dir / "spec.json").write_text(json.dumps(spec))
    ranks = Ranks(run_dir)
    shared = {
        "WORLD_SIZE": num_ranks,
        "NUM_NODES": len(nodes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "OMP_NUM_THREADS": 1,
        "TRAINPKG_SPEC": launch_dir / "spec.json",
        "TRAINPKG_GENERATION": generation,
        "TRAINPKG_DEVICE": "cpu",
        "TRAINPKG_DIST_BACKEND": "gloo",
        "TRAINPKG_REPORT": _listen(ranks),
        **(env or {}),
    }
    os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"  # read when the fork server imports torch
    for number, (node, local) in enumerate((node, i) for node, count in enumerate(nodes) for i in range(count)):
        own = {"RANK": number, "LOCAL_RANK": local, "LOCAL_WORLD_SIZE": nodes[node], "NODE_RANK": node}
        variables = {**os.environ, **{k: str(v) for k, v in {"TRAINPKG_HOST": f"sim{node}", **own, **shared}.items()}}
        ranks.logs.append(generation_dir / f"rank-{number}.log")
        process = _forkserver.Process(target=_enter, args=(str(ranks.logs[-1]), variables, before), daemon=True)
        process.start()
        ranks.processes.append(process)
    return ranks


def _listen(ranks: Ranks) -> str:
    """Collect the ranks' reports, as the node's launcher does; returns the socket's path."""
    address = str(Path(tempfile.mkdtemp(prefix="ranks-")) / "socket")  # pytest's own folders are too deep for a socket
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(address)
    server.listen(16)

    def read(connection: socket.socket) -> None:
        with connection.makefile() as lines:
            for line in lines:
                ranks.reports.append(json.loads(line))

    def accept() -> None:
        while True:
            connection, _ = server.accept()
            threading.Thread(target=read, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return address


def run_ranks(run: Run, run_dir: Path, num_ranks: int, expect: int = 0, timeout_s: float = 60, **options: Any) -> Ranks:
    """Start, wait, and check that every rank ended with status `expect`."""
    ranks = start(run, run_dir, num_ranks, **options)
    statuses = ranks.wait(timeout_s)
    assert statuses == [expect] * num_ranks, f"{statuses}\n{ranks.text()}"
    return ranks


def weights(run_dir: Path) -> dict[str, Any]:
    """The exported weights."""
    from safetensors.torch import load_file

    return load_file(run_dir / "model" / "model.safetensors")


def records(run_dir: Path) -> list[dict[str, Any]]:
    """metrics.jsonl, the last attempt and generation for each kind and step, without times, rates and memory."""
    last: dict[tuple[str, int], dict[str, Any]] = {}
    for line in (run_dir / "metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        last[record["kind"], record["step"]] = {k: v for k, v in record.items() if k not in VOLATILE}
    return [last[key] for key in sorted(last)]


VOLATILE = {"attempt", "generation", "time_s", "samples_per_second", "tokens_per_second", "step_time_s"} | {
    "data_time_s",
    "memory_mb",
}
