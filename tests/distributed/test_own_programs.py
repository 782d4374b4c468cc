"""Programs that are not ours: a user's own script on every backend, and any command once per node."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.launching import ROOT, Launch

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(300)]
TWO = {"nodes": 2, "gpus_per_node": 2}
LIMIT_S = 150.0
SCRIPT = "tests/distributed/own_script.py"
TORCHRUN = (
    "{python} -m torch.distributed.run --nnodes={num_nodes} --nproc-per-node={gpus_per_node} --node-rank={node_rank} "
    "--rdzv-backend=static --master-addr={master_addr} --master-port={master_port} "
)
# what people write themselves: one process per rank in the background, and a wait
BY_HAND = (
    "bash -c 'for k in $(seq 0 $(({gpus_per_node} - 1))); do RANK=$(({rank_offset} + k)) LOCAL_RANK=$k "
    "WORLD_SIZE={world_size} LOCAL_WORLD_SIZE={gpus_per_node} {python} {entry} & done; wait%s'"
)


def launched(folder: Path, keys: dict[str, Any], *args: Any, out: str = "weights", **more: Any) -> Launch:
    """A launch of the script: it is given where to write and how many steps, and `args`."""
    entry = {"script": SCRIPT, "args": [str(folder / out), "10", *args]}
    keys = {**TWO, **keys}
    return Launch(folder / "run", keys, {"entry": "none"}, more={"entry": entry}, limit_s=LIMIT_S, **more)


@pytest.fixture(scope="module")
def spawned(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The weights' hash after the script ran on spawn; all that is told of such a run is checked on the way."""
    folder = tmp_path_factory.mktemp("spawned")
    done = launched(folder, {}, "{rank}/{world_size}", "{local_rank}", "{hosts}", "{{}}").run()
    assert done.status == 0, done.output
    assert "4 of 4 ranks started" in done.output
    told = json.loads((folder / "weights").read_text())
    wanted = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "4", "LOCAL_WORLD_SIZE": "2", "NODE_RANK": "0"}
    assert (wanted | {"GROUP_RANK": "0", "MASTER_ADDR": "127.0.0.1"}).items() <= told["environment"].items()
    for rank in range(4):
        log = (folder / "run/launch/1/0" / f"rank-{rank}.log").read_text()
        assert f"rank {rank} of 4: ['{rank}/4', '{rank % 2}', 'sim0,sim1', '{{}}']" in log
    result = json.loads(done.out.read_text())
    assert (result["status"], result["world_size"], result["gpus_per_node"]) == ("finished", 4, [2, 2])
    assert result["run"] == "run" and result["time_s"] > 0 and "final" not in result
    again = launched(folder, {}, "{rank}/{world_size}", "{local_rank}", "{hosts}", "{{}}").run()
    assert "finished already" in again.output
    return str(told["hash"])


@pytest.mark.parametrize(
    "keys",
    [
        pytest.param({"backend": "torchrun-static"}, marks=pytest.mark.long),  # ours: cluster/test_backends.py
        {"backend": "torchrun"},
        {"backend": "command", "command": TORCHRUN + "{entry}"},
    ],
    ids=["torchrun-static", "torchrun", "command"],
)
def test_a_script_comes_to_the_same_weights_on_every_backend(
    tmp_path: Path, spawned: str, keys: dict[str, Any]
) -> None:
    done = launched(tmp_path, keys).run()
    assert done.status == 0, done.output
    assert json.loads((tmp_path / "weights").read_text())["hash"] == spawned
    assert json.loads(done.out.read_text())["status"] == "finished"
    assert len(list((tmp_path / "run/launch/1/0").glob("rank-*.log"))) == 4


def test_the_readmes_script_is_tried_as_it_says(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text().partition("## A script of your own")[2]
    commands = text.partition("```sh\n")[2].partition("```")[0]
    for name in ("config", "tests"):
        (tmp_path / name).symlink_to(ROOT / name)
    env = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        ["bash", "-ec", commands], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "results/runs/mine/train.json").read_text())["gpus_per_node"] == [1, 1]
    assert json.loads((tmp_path / "results/weights.json").read_text())["hash"]


def test_a_killed_rank_of_a_script_is_the_cause_and_the_script_starts_again(tmp_path: Path, spawned: str) -> None:
    def spare_the_next(launch: Launch, process: subprocess.Popen[bytes]) -> None:
        launch.wait_for_line("starting all ranks again")

    failed = launched(tmp_path, {"max_restarts": 1}, environment={"TEST_SCRIPT": "kill:3:4"}).run(spare_the_next)
    assert failed.status == 137, failed.output
    for generation in range(2):
        told = failed.file(f"{generation}/failure.json")
        assert (told["rank"], told["signal"], told["kind"]) == (3, 9, "signal")
        assert "step" not in told["sentence"]
    assert failed.file("0/plan.json")["master_port"] != failed.file("1/plan.json")["master_port"]
    assert not failed.out.exists()


def test_a_program_of_which_nothing_is_ours(tmp_path: Path, spawned: str) -> None:
    command = f"{TORCHRUN} {SCRIPT} {tmp_path / 'weights'} 10"
    done = Launch(tmp_path / "run", {**TWO, "backend": "command", "command": command}, limit_s=LIMIT_S).run()
    assert done.status == 0, done.output
    assert "2 of 2 programs started" in done.output
    assert json.loads((tmp_path / "weights").read_text())["hash"] == spawned
    assert json.loads(done.out.read_text())["world_size"] == 4
    assert not list((tmp_path / "run/launch/1/0").glob("rank-*.log"))
    assert "torch.distributed.run" in (tmp_path / "run/launch/1/0/program-1.log").read_text()


@pytest.mark.parametrize(
    ("command", "status", "sentence"),
    [
        ("bash -c 'echo no such layer; exit {node_rank}'", 1, "the program of node 1 (sim1) exited with status 1"),
        (
            "bash -c '[ {node_rank} = 0 ] || kill -SEGV $$; sleep 600'",
            139,
            "the program of node 1 (sim1) was killed by",
        ),
        ("no-such-program {node_rank}", 1, "there is no program 'no-such-program' on this node (PATH="),
    ],
)
def test_the_end_of_a_program_is_its_node_s(tmp_path: Path, command: str, status: int, sentence: str) -> None:
    failed = Launch(tmp_path / "run", {**TWO, "backend": "command", "command": command}).run()
    assert failed.status == status, failed.output
    assert sentence in failed.last_line
    assert "step" not in failed.last_line
    if status == 1 and "bash" in command:
        assert "no such layer" in failed.last_line


def test_ranks_of_ours_that_a_hand_made_script_starts(tmp_path: Path) -> None:
    done = Launch(tmp_path / "run", {**TWO, "backend": "command", "command": BY_HAND % ""}).run()
    assert done.status == 0, done.output
    assert "4 of 4 ranks joined" in done.output
    assert "rank 3 of 4 from step 0" in (tmp_path / "run/launch/1/0/rank-3.log").read_text()


@pytest.mark.parametrize(
    ("tail", "environment", "status", "sentence"),
    [
        ("; exit 5", {}, 5, "ended with status 5 after its ranks were done"),
        ("", {"TEST_BAD": "kill:2:3"}, 137, "rank 2 on node 1 (sim1) was killed by SIGKILL at step 2"),
    ],
)
def test_the_program_s_own_status_counts_where_its_ranks_do_not_explain_it(
    tmp_path: Path, tail: str, environment: dict[str, str], status: int, sentence: str
) -> None:
    keys = {**TWO, "backend": "command", "command": BY_HAND % tail}
    failed = Launch(tmp_path / "run", keys, environment=environment).run()
    assert failed.status == status, failed.output
    assert sentence in failed.last_line


@pytest.mark.failure("F049")
@pytest.mark.failure("F055")
def test_a_program_that_starts_other_ranks_than_the_plan_has_is_told(tmp_path: Path) -> None:
    command = BY_HAND.replace("WORLD_SIZE={world_size}", "WORLD_SIZE={gpus_per_node}", 1).replace("{rank_offset}", "0")
    failed = Launch(tmp_path / "run", {**TWO, "backend": "command", "command": command % ""}).run()
    assert failed.status == 1, failed.output
    assert "the launcher counts 2 ranks, the plan has 4" in failed.last_line


def test_a_program_that_starts_no_rank_is_told_with_its_words(tmp_path: Path) -> None:
    command = "bash -c 'echo nothing to do; : {entry}'"
    failed = Launch(tmp_path / "run", {**TWO, "backend": "command", "command": command}).run()
    assert failed.status == 1, failed.output
    assert "ended with status 0 before its ranks were started; its last line: nothing to do" in failed.last_line


def test_ctrl_c_ends_programs_and_what_they_started(tmp_path: Path) -> None:
    def interrupt(launch: Launch, process: subprocess.Popen[bytes]) -> None:
        launch.wait_for_line("2 of 2 programs started")
        process.send_signal(signal.SIGINT)

    command = "bash -c 'setsid sleep 600 & sleep 600'"
    ended = Launch(tmp_path / "run", {**TWO, "backend": "command", "command": command}).run(interrupt)
    assert ended.status == 130, ended.output


@pytest.mark.failure("F033")
@pytest.mark.failure("F064")
def test_a_node_that_is_started_twice_is_told_so(tmp_path: Path) -> None:
    said: list[str] = []

    def start_again(launch: Launch, process: subprocess.Popen[bytes]) -> None:
        launch.wait_for_line("4 of 4 ranks joined")
        command = [sys.executable, "-m", "trainpkg", "node", f"--spec={launch.folder / 'launch/1/spec.json'}"]
        command += ["--head=127.0.0.1:1", "--node-rank=1"]
        own = os.environ | {"TRAINPKG_SECRET": "x"}
        second = subprocess.run(command, env=own, capture_output=True, text=True, timeout=60, check=False)
        said.extend([str(second.returncode), second.stderr])
        process.send_signal(signal.SIGINT)

    Launch(tmp_path / "run", TWO, environment={"TEST_STEPS": "2000"}).run(start_again)
    assert said[0] == "2"
    assert "this host has a launcher of this attempt already" in said[1]
    assert "SLURM_NTASKS_PER_NODE" in said[1]
