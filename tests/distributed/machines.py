"""Machines on which people type `node`: processes of this one, on loopback, with a config and a secret of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from tests.distributed.launching import LIMIT_S, ROOT, Launch
from tests.distributed.start import TINY, free_port

STEPS = {"entry": "tests.distributed.entries:steps", "preload": ["json"]}


class Machines(Launch):
    """Commands typed one after the other. `launch` has config keys, `spec` fields of the spec."""

    def __init__(self, folder: Path, launch: dict[str, Any] | None = None, environment: dict[str, str] | None = None):
        super().__init__(folder, launch or {}, STEPS, environment or {})
        folder.mkdir(parents=True)
        self.port = free_port()
        self.nodes: list[subprocess.Popen[bytes]] = []
        self.secret = folder / "secret"
        self.write_secret(self.secret, "one secret for all of these nodes")
        recipe = {key: value for key, value in TINY["digits"].items() if key not in ("run", "recipe")}
        recipe["launch"] = {"device": "cpu", "max_restarts": 0, "stop_grace_s": 1.0} | self.launch
        (folder / "tiny.yaml").write_text(yaml.safe_dump(recipe))
        (folder / "runs.tsv").write_text("run\trecipe\nr\ttiny\n")
        tree = {"results_dir": str(folder / "results"), "sheet": str(folder / "runs.tsv"), "recipes": str(folder)}
        (folder / "config.yaml").write_text(yaml.safe_dump(tree))

    @property
    def run_dir(self) -> Path:
        return self.folder / "results/runs/r"

    @staticmethod
    def write_secret(path: Path, text: str) -> None:
        path.touch(0o600)
        path.write_text(text)

    def flags(self, node_rank: int, num_nodes: int = 2, **more: Any) -> list[str]:
        flags = {"num-nodes": num_nodes, "node-rank": node_rank, "gpus-per-node": 1, "secret-file": self.secret}
        flags |= {"dist-url": f"tcp://127.0.0.1:{self.port}"} | {k.replace("_", "-"): v for k, v in more.items()}
        return ["--local", *(f"--{name}={value}" for name, value in flags.items() if value is not None)]

    def type(self, *words: str, **variables: str) -> subprocess.Popen[bytes]:
        """Start a command with these words; its output is `output_of` its number."""
        own = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
        own |= {"OMP_NUM_THREADS": "1", "TEST_MARK": self.mark, "TEST_SPEC": json.dumps(self.spec)}
        command = [sys.executable, "-m", "tests.distributed.typed_node", *words]
        with self.log_of(len(self.nodes)).open("wb") as file:
            node = subprocess.Popen(
                command, cwd=ROOT, env=own | self.environment | variables, stdin=subprocess.DEVNULL, stdout=file,
                stderr=subprocess.STDOUT, start_new_session=True,
            )  # fmt: skip
        self.nodes.append(node)
        return node

    def type_node(self, node_rank: int, num_nodes: int = 2, **more: Any) -> subprocess.Popen[bytes]:
        return self.type(*self.flags(node_rank, num_nodes, **more), str(self.folder / "config.yaml"))

    def log_of(self, number: int) -> Path:
        return self.folder / f"typed-{number}.log"

    def output_of(self, number: int) -> str:
        return self.log_of(number).read_text()

    def wait_for_words(self, number: int, text: str) -> None:
        self.wait_for(lambda: text in self.output_of(number), text)

    def statuses(self) -> list[int]:
        """The exit statuses of all commands, in the order in which they were typed; asserts that nothing is left."""
        end = time.monotonic() + LIMIT_S
        try:
            found = [node.wait(max(end - time.monotonic(), 0.1)) for node in self.nodes]
        finally:
            for node in self.nodes:
                node.kill()
                node.wait()
            left = self.left(5.0)
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            outputs = "\n".join(f"--- {k}\n{self.output_of(k)}" for k in range(len(self.nodes)))
        assert not left, f"left behind: {left}\n{outputs}"
        self.output = outputs
        return found

    def all_say(self, *sentences: str) -> None:
        for number in range(len(self.nodes)):
            text = self.output_of(number)
            assert "Traceback" not in text and all(one in text for one in sentences), self.output
