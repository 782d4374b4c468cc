"""Starts the ranks of one stage as plain processes, with the environment that the launcher would give them."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from trainpkg.config import Run

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


@dataclass
class Ranks:
    """Running ranks of one stage."""

    run_dir: Path
    processes: list[subprocess.Popen[bytes]]
    logs: list[Path]
    reports: list[dict[str, Any]] = field(default_factory=list)

    def wait(self, timeout_s: float = 60) -> list[int]:
        """Exit statuses; kills all and fails the test after the timeout."""
        end = time.monotonic() + timeout_s
        try:
            return [process.wait(max(end - time.monotonic(), 0.1)) for process in self.processes]
        except subprocess.TimeoutExpired:
            raise AssertionError(f"ranks hang:\n{self.text()}") from None
        finally:
            for process in self.processes:
                process.kill()
                process.wait()

    def text(self) -> str:
        return "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')}" for log in self.logs)

    def events(self, name: str) -> list[dict[str, Any]]:
        return [report for report in self.reports if report["event"] == name]


def start(
    run: Run,
    run_dir: Path,
    num_ranks: int,
    stage: str = "train",
    attempt: int = 1,
    generation: int = 0,
    command: list[str] | None = None,
    out: Path | None = None,
    nodes: list[int] | None = None,
    env: dict[str, str] | None = None,
) -> Ranks:
    """Start `num_ranks` ranks; `nodes` gives the number of ranks per node (default: one node)."""
    nodes = nodes or [num_ranks]
    launch_dir = run_dir / "launch" / str(attempt)
    generation_dir = launch_dir / str(generation)
    generation_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / "config.yaml").write_text(
        yaml.safe_dump({**run.model_dump(mode="json"), "fingerprint": run.fingerprint()})
    )
    port = free_port()
    places = [(node, local) for node, count in enumerate(nodes) for local in range(count)]
    plan = {
        "world_size": num_ranks,
        "nodes": [
            {"host": f"sim{i}", "index": i, "rank_offset": sum(nodes[:i]), "num_ranks": n} for i, n in enumerate(nodes)
        ],
        "master_addr": "127.0.0.1",
        "master_port": port,
    }
    (generation_dir / "plan.json").write_text(json.dumps(plan))
    default_out = run_dir / {"train": "train.json", "evaluate": "evaluation.json", "smoke": "smoke.json"}[stage]
    spec = {
        "stage": stage,
        "run": run.run,
        "run_dir": str(run_dir),
        "out": str(out or default_out),
        "config_path": str(run_dir / "config.yaml"),
        "attempt": attempt,
        "launch_dir": str(launch_dir),
        "code_hash": "0123",
    }
    (launch_dir / "spec.json").write_text(json.dumps(spec))
    ranks = Ranks(run_dir, [], [])
    address = str(Path(tempfile.mkdtemp(prefix="ranks-")) / "socket")  # pytest's own folders are too deep for a socket
    _listen(ranks, address)
    for rank, (node, local) in enumerate(places):
        log = generation_dir / f"rank-{rank}.log"
        ranks.logs.append(log)
        with log.open("ab") as stream:
            ranks.processes.append(
                subprocess.Popen(
                    command or [sys.executable, "-m", "trainpkg.runtime.rank"],
                    stdin=subprocess.DEVNULL,
                    stdout=stream,
                    stderr=stream,
                    env={
                        **os.environ,
                        "RANK": str(rank),
                        "LOCAL_RANK": str(local),
                        "WORLD_SIZE": str(num_ranks),
                        "LOCAL_WORLD_SIZE": str(nodes[node]),
                        "NODE_RANK": str(node),
                        "NUM_NODES": str(len(nodes)),
                        "MASTER_ADDR": "127.0.0.1",
                        "MASTER_PORT": str(port),
                        "OMP_NUM_THREADS": "1",
                        "OPENBLAS_NUM_THREADS": "1",
                        "TRAINPKG_SPEC": str(launch_dir / "spec.json"),
                        "TRAINPKG_GENERATION": str(generation),
                        "TRAINPKG_HOST": f"sim{node}",
                        "TRAINPKG_DEVICE": "cpu",
                        "TRAINPKG_DIST_BACKEND": "gloo",
                        "TRAINPKG_REPORT": address,
                        **(env or {}),
                    },
                )
            )
    return ranks


def _listen(ranks: Ranks, address: str) -> None:
    """Collect the ranks' reports, as the node's launcher does."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(address)
    server.listen(16)

    def read(connection: socket.socket) -> None:
        with connection.makefile() as lines:
            ranks.reports.extend(json.loads(line) for line in lines)

    def accept() -> None:
        while True:
            connection, _ = server.accept()
            threading.Thread(target=read, args=(connection,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()


def run_ranks(run: Run, run_dir: Path, num_ranks: int, expect: int = 0, **options: Any) -> Ranks:
    """Start, wait, and check that every rank ended with status `expect`."""
    ranks = start(run, run_dir, num_ranks, **options)
    statuses = ranks.wait()
    assert statuses == [expect] * num_ranks, f"{statuses}\n{ranks.text()}"
    return ranks
