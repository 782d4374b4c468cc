"""What starts on a node, by running it: quoting, one shell for all lines, and the failing line by its name."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, cast

import pytest

from tests.unit.test_rollcall import make_facts, make_spec
from trainpkg.launch.facts import RollCallError
from trainpkg.launch.head.meeting.member import Member
from trainpkg.launch.head.meeting.missing import Waiting
from trainpkg.launch.head.steps import command, places
from trainpkg.launch.head.steps.command import OnTheWay
from trainpkg.launch.spec import Spec

SHOW = "import json, os, sys; print(json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]))"


def spec_in(folder: Path, **keys: Any) -> Spec:
    spec = make_spec(2, launch_dir=str(folder), **keys)
    spec.generation_dir(0).mkdir()
    return spec


def start(spec: Spec, *program: str, index: int = 1, **env: str) -> subprocess.CompletedProcess[str]:
    words = command.on_node(spec, [*(program or (sys.executable, "-c", SHOW)), "a b", "$X"])
    environment = {"PATH": os.environ["PATH"], "HOME": "/root", command.NODE_RANK: str(index)} | env
    return subprocess.run(words, env=environment, capture_output=True, text=True, timeout=30, check=False)


def shown(done: subprocess.CompletedProcess[str]) -> tuple[list[str], dict[str, str], str]:
    assert done.returncode == 0, done.stderr
    found: tuple[list[str], dict[str, str], str] = json.loads(done.stdout)
    return found


def test_without_keys_the_program_runs_as_it_is(tmp_path: Path) -> None:
    words, env, _ = shown(start(spec_in(tmp_path)))
    assert words == ["a b", "$X"]
    assert not [name for name in env if name.lower().startswith(("trainpkg", "_trainpkg"))]
    assert list((tmp_path / "0").iterdir()) == []


def test_all_lines_run_in_one_shell_and_what_they_do_holds(tmp_path: Path) -> None:
    lines = ["set -eu", "export X=\"it's\" Y='\"'", 'export Z="$X-${HOME}"', "cd /usr"]
    lines += ["echo loaded; f() { export F=1; }", "f", "declare -x D=2"]
    spec = spec_in(tmp_path, prologue=lines, env={"Y": "o'clock $X", "NEW": ""}, env_prepend={"PATH": "/opt/a b"})
    words, env, folder = shown(start(spec, NEW="old"))
    assert words == ["a b", "$X"]
    assert folder == "/usr"
    wanted = {"X": "it's", "Y": "o'clock $X", "Z": "it's-/root", "F": "1", "D": "2", "NEW": ""}
    assert wanted.items() <= env.items()
    assert env["PATH"] == f"/opt/a b:{os.environ['PATH']}"
    assert [path.name for path in (tmp_path / "0").iterdir()] == ["node-1.log"]
    assert (tmp_path / "0/node-1.log").read_text() == "loaded\n"


def test_the_wrapper_gets_the_program_as_words_and_may_use_variables(tmp_path: Path) -> None:
    spec = spec_in(tmp_path, prologue=["export NAME=W"], wrapper="env $NAME=1 'Q=a b'")
    words, env, _ = shown(start(spec))
    assert words == ["a b", "$X"]
    assert (env["W"], env["Q"]) == ("1", "a b")


@pytest.mark.parametrize(
    ("lines", "status", "words"),
    [
        (["true", "echo about it >&2; false"], 1, "line 2 of launch.prologue, "),
        (["echo about it >&2; false"], 1, "'echo about it >&2; false', ended with status 1; it said: about it"),
        (["set -e", "false; true"], 1, "line 2 of launch.prologue"),
        (["if then"], 2, "line 1 of launch.prologue, 'if then', ended with status 2"),
        (["exit 0"], 1, "line 1 of launch.prologue, 'exit 0', ended the shell"),
        (["trap - EXIT; exec 3>&-", "exit 9"], 9, ""),
        (["set -u", "echo $NOWHERE"], 127, "line 2 of launch.prologue"),
        (["module load cuda"], 127, "module: command not found. `module` is a function of login shells"),
        (["conda activate x"], 127, "A line before it must define conda"),
    ],
)  # fmt: skip
def test_a_line_that_fails_is_named_with_its_status_and_words(
    tmp_path: Path, lines: list[str], status: int, words: str
) -> None:
    spec = spec_in(tmp_path, prologue=lines)
    done = start(spec)
    assert done.returncode == status
    assert done.stdout == ""
    if words:
        (text,) = command.read_way(spec, {}).failed
        assert text.startswith("node 1 (n2): ")
        assert words in text
        assert "trainpkg: error:" in done.stderr  # for srun's reader, where the run directory is not shared
        assert "of launch.prologue ended with status" in done.stderr


def test_a_line_that_still_runs_is_told(tmp_path: Path) -> None:
    spec = spec_in(tmp_path, prologue=["true", "cat way-1 > copy"])
    shown(start(make_spec(2, launch_dir=str(tmp_path), prologue=[f"cp {tmp_path}/0/way-1 {tmp_path}/copy"])))
    (tmp_path / "0/way-1").write_text((tmp_path / "copy").read_text())
    (tmp_path / "0/way-7").write_text("runs 1\n")  # no such node
    way = command.read_way(spec, {})
    assert way.failed == []
    assert way.busy == {1: "node 1 (n2), which is in line 1 of launch.prologue ('true'),"}


@pytest.mark.parametrize(
    ("keys", "program", "words"),
    [
        ({}, "/no/python", "/no/python is not there: it runs Snakemake, and must lie on a file system that"),
        ({"python": "python9"}, "python9", "python9 is not there: launch.python names it"),
        ({"wrapper": "no-apptainer exec --nv"}, "python3", "no-apptainer is not there: launch.wrapper begins with it"),
    ],
)
def test_a_missing_program_is_named_with_what_to_do(
    tmp_path: Path, keys: dict[str, str], program: str, words: str
) -> None:
    spec = spec_in(tmp_path, **keys)
    done = start(spec, program)
    assert done.returncode == 127
    assert words in done.stderr
    assert command.read_way(spec, {}).failed[0].startswith(f"node 1 (n2): {words}")


def test_a_run_directory_that_a_node_does_not_see_is_no_end(tmp_path: Path) -> None:
    spec = make_spec(2, launch_dir=str(tmp_path / "absent"), prologue=["echo words"])
    done = start(spec)
    assert done.returncode == 0
    assert done.stdout.startswith("words\n[")
    assert done.stderr == ""


def test_a_node_in_its_prologue_is_waited_for_as_long_as_a_start_may_take() -> None:
    """The roll call's time counts from the first answer, and not for nodes that are still loading modules."""
    there = {0: Member(make_facts(0), cast(Any, None), "10.0.0.1")}
    busy = OnTheWay(busy={1: "node 1 (n2), which is in line 1 of launch.prologue ('sleep 60'),"})
    waiting = Waiting(make_spec(2), lambda text: None)
    waiting.answered()
    waiting.deadline_s = time.monotonic() - 1
    asyncio.run(waiting.check(there, "", busy))
    with pytest.raises(RollCallError, match="node 1 "):
        waiting.deadline_s = time.monotonic() - 1
        asyncio.run(waiting.check(there, "", OnTheWay()))
    waiting.begin_s -= waiting.spec.timeouts.start_s
    with pytest.raises(RollCallError, match=r"line 1 of launch.prologue \('sleep 60'\), did not answer the roll call"):
        waiting.deadline_s = time.monotonic() - 1
        asyncio.run(waiting.check(there, "", busy))


def test_the_command_of_a_node(tmp_path: Path) -> None:
    spec = make_spec(2, python="/opt/py/bin/python")
    assert command.node_command(spec, tmp_path / "spec.json", "h:1")[6:] == [
        "/opt/py/bin/python", "-m", "trainpkg", "node", f"--spec={tmp_path}/spec.json", "--head=h:1",
    ]  # fmt: skip
    assert command.node_command(make_spec(2), tmp_path, "h:1")[6] == sys.executable


def test_srun_args_follow_ours_and_their_gpus_replace_ours() -> None:
    plain = make_spec(2, where="slurm", step_gpus=4)
    assert "--gres=gpu:4" in places.srun_command(plain, [])
    own = make_spec(2, where="slurm", step_gpus=4, srun_args="--container-image='/a b.sqsh' --gpus-per-node=8")
    words = places.srun_command(own, [])
    assert words[-2:] == ["--container-image=/a b.sqsh", "--gpus-per-node=8"]
    assert "--gres=gpu:4" not in words


def test_a_node_that_srun_could_not_reach_is_named_with_sruns_words(tmp_path: Path) -> None:
    (text,) = command.read_way(spec_in(tmp_path), {"n2": "Communication connection failure"}).failed
    assert text.startswith("node 1 (n2): srun could not start its launcher there: Communication connection failure")
    assert "`scontrol show node n2`" in text
