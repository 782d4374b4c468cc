"""The keys for a site's surroundings: what they refuse, with what to say instead."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from tests.distributed.launched import make_run
from trainpkg.config import Launch
from trainpkg.config.site import disagreements

FINE: list[dict[str, Any]] = [
    {"env": {"NCCL_DEBUG": "INFO", "NCCL_IB_TC": 106, "TOKENIZERS_PARALLELISM": "false", "GLOO_SOCKET_IFNAME": "eth0"}},
    {"env": {"OMP_NUM_THREADS": 3, "NCCL_DEBUG_FILE": "/tmp/%h.%p", "GPUS_PER_NODE": "8", "NCCL_SHARP_MAX_COMMS": "1"}},
    {"env": {"NCCL_IB_DISABLE": "1"}, "preset": "ethernet"},
    {"env_prepend": {"PATH": "/opt/a:/opt/b", "PYTHONPATH": "/site", "LD_LIBRARY_PATH": "/l"}},
    {"prologue": ["module load cuda/13.0", 'eval "$(conda shell.bash hook)"', "exec 2>/tmp/log", "a || b"]},
    {"wrapper": "apptainer exec --nv --bind '/a b:/c' $IMAGE", "python": "/usr/bin/python3"},
    {"srun_args": "--container-image=/i.sqsh --container-mounts /a:/b --gpus-per-node=4 --exclusive -l -v"},
    {"srun_args": "--mem-bind=local --gres=gpu:4 --time 10 --mem=0 --exact --chdir=/x"},
]

REFUSED = [
    ({"env": {"NCCL_ASYNC_ERROR_HANDLING": "1"}}, "today's is TORCH_NCCL_ASYNC_ERROR_HANDLING"),
    ({"env": {"NCCL_BLOCKING_WAIT": "1"}}, "today's is TORCH_NCCL_BLOCKING_WAIT"),
    ({"env": {"PYTORCH_CUDA_ALLOC_CONF": "x"}}, "today's is PYTORCH_ALLOC_CONF"),
    ({"env": {"NCCL_SOCKET_IFNAMES": "eth0"}}, "nearest name is NCCL_SOCKET_IFNAME"),
    ({"env": {"NCCL_RINGS": "1"}}, "is read by nothing"),
    ({"env": {"NCCL_IB_DISABLE": "1"}, "preset": "infiniband"}, "contradicts launch.preset = 'infiniband': that is 0"),
    ({"env": {"MASTER_ADDR": "n1"}}, "say launch.master_addr"),
    ({"env": {"CUDA_VISIBLE_DEVICES": "0"}}, "say launch.devices"),
    ({"env": {"LOCAL_RANK": "0"}}, "for each rank"),
    ({"env": {"TRAINPKG_HOST": "x"}}, "for each rank"),
    ({"env": {"SLURM_NTASKS": "4"}}, "Slurm's to set"),
    ({"env": {"PYTHONPATH": "/x"}}, "launch.env_prepend"),
    ({"env": {"2X": "1"}}, "do not begin with a digit"),
    ({"env": {"PATH": "/opt:$PATH"}}, "`$` means nothing"),
    ({"env": {"X": "`hostname`"}}, "export it in launch.prologue"),
    ({"env": {"OMP_NUM_THREADS": "all"}}, "no number of threads"),
    ({"env_prepend": {"NCCL_DEBUG": "INFO"}}, "launch.env sets it"),
    ({"env_prepend": {"HF_TOKEN": "x"}}, "launch.env_prepend.HF_TOKEN: a secret must not stand in a config"),
    ({"env_prepend": {"PATH": "/a:"}}, "the current folder"),
    ({"env_prepend": {"PATH": "$HOME/bin"}}, "taken as they stand"),
    ({"prologue": ["true", " "]}, "line 2 is empty"),
    ({"prologue": ["exec bash"]}, "replaces the shell"),
    ({"wrapper": "apptainer exec 'x"}, "No closing quotation"),
    ({"wrapper": "module load x; apptainer exec y"}, "launch.prologue runs others before"),
    ({"wrapper": " "}, "one command on one line"),
    ({"python": ""}, "one command on one line"),
    ({"srun_args": "--mem=0", "where": "local"}, "no effect with launch.where = 'local'"),
    ({"srun_args": "--container-image='x"}, "No closing quotation"),
    ({"srun_args": "--mem=0 hostname"}, "srun would take it for the program"),
]

OURS = ["--ntasks=4", "-n4", "-n 4", "-N", "--nodes=2", "--node=2", "--ntask 4", "--overlap", "-ln2"]
OURS += ["--cpus-per-task 3"]
OURS += ["-c4", "-w n1", "--nodelist=n1", "--exclu=n1", "--gpus=4", "-G4", "--gpus-per-task=1", "--gpu-bind=closest"]
OURS += ["--cpu-bind=cores", "--export=NONE", "--output=x", "-K0", "--kill-on-bad-exit=0", "-W 0", "--wait=0", "-u"]
OURS += ["--ntasks-per-node=8", "--tasks-per-node=8", "--multi-prog", "--mpi=pmix", "--het-group=0", "--pty", "-J x"]


@pytest.mark.parametrize("keys", FINE)
def test_what_a_site_may_say(keys: dict[str, Any]) -> None:
    assert disagreements(Launch.model_validate(keys)) == []


@pytest.mark.failure("F048")
@pytest.mark.parametrize(("keys", "words"), REFUSED)
def test_what_would_contradict_do_nothing_or_leak_is_refused(keys: dict[str, Any], words: str, tmp_path: Path) -> None:
    (text,) = disagreements(Launch.model_validate(keys))
    assert text.startswith("launch.")
    assert words in text
    with pytest.raises(ValidationError, match=r"launch\."):
        make_run(tmp_path / "run/train.json", **keys)


@pytest.mark.parametrize("option", OURS)
def test_options_of_srun_that_are_the_launchers(option: str) -> None:
    found = disagreements(Launch.model_validate({"srun_args": f"--mem=0 {option}"}))
    assert any("contradicts the launcher" in text for text in found), found


def test_a_secret_is_refused_and_not_repeated() -> None:
    (text,) = disagreements(Launch.model_validate({"env": {"WANDB_API_KEY": "hidden"}}))
    assert "launch.prologue" in text
    assert "hidden" not in text
