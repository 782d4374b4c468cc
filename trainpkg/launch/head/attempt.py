"""The files of an attempt: where they lie, whose they are, and whether there is anything to do.

Everything here happens under the run directory's lock. Snakemake deletes declared outputs before a job and after a
failed one, so what must outlive it (finished.json, the verdicts) stands in undeclared files beside them.
"""

from __future__ import annotations

import dataclasses
import json
import os
import secrets
import shutil
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trainpkg.config import Run
from trainpkg.errors import UserError
from trainpkg.launch import facts
from trainpkg.launch.head import history, inputs, own
from trainpkg.launch.head.outcome import DO_NOT_RUN_AGAIN, Outcome
from trainpkg.launch.slurm.control import Life
from trainpkg.launch.spec import PRELOAD, Spec, Timeouts

STAGES = ("smoke", "train", "evaluate")
FINISHED = "finished.json"


@dataclass(frozen=True)
class Folder:
    """Where a stage keeps its files. `home` has the lock, config.yaml and launch/; `run_dir` the run's products."""

    stage: str
    out: Path
    run_dir: Path
    home: Path

    @classmethod
    def of(cls, stage: str, out: Path) -> Folder:
        """The directory of the output, never a literal: a module's prefix moves outputs."""
        out = out.absolute()
        if stage == "smoke":
            return cls(stage, out, out.with_suffix(""), out.with_suffix(""))
        home = out.parent / "evaluate" if stage == "evaluate" else out.parent
        return cls(stage, out, out.parent, home)

    @property
    def launches(self) -> Path:
        return self.home / "launch"


def set_aside_other_run(folder: Folder, run: Run) -> str:
    """Move a run of another fingerprint, or with other inputs, out of the way; returns where it went, or nothing.

    The lock stays, since it is ours by now: what moves is what lies beside it.
    """
    stored = read_fingerprint(folder.run_dir / "config.yaml")
    if folder.stage != "train" or stored is None:
        return ""
    if stored == run.fingerprint() and not inputs.have_changed(folder.run_dir, run):
        return ""
    shelf = folder.run_dir.parent / ".old"
    target = shelf / f"{run.run}.{stored}"
    number = 1
    while target.exists():
        number += 1
        target = shelf / f"{run.run}.{stored}.{number}"
    target.mkdir(parents=True)
    # config.yaml last: as long as it lies there, an interrupted move is taken up again
    for path in sorted(folder.run_dir.iterdir(), key=lambda path: path.name == "config.yaml"):
        if path.name != "lock" and not path.name.startswith(".lock"):
            path.rename(target / path.name)
    if (target / FINISHED).exists():  # Snakemake deleted the output before it ran the rule anew
        publish(target / FINISHED, target / folder.out.name)
    return str(target)


def read_fingerprint(path: Path) -> str | None:
    """The fingerprint in a resolved config, None where there is no such file; UserError where it says none."""
    try:
        tree = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        return None
    except yaml.YAMLError:
        tree = None
    if isinstance(tree, dict) and "fingerprint" in tree:
        return str(tree["fingerprint"])
    raise UserError(
        f"{path} does not say whose run lies in its directory (no fingerprint in it): nothing was started or moved. "
        "Remove that file to go on with the run, or move the directory away to start anew"
    )


def check_trained(folder: Folder, run: Run) -> None:
    """An evaluation needs the run that the config speaks of. Raises UserError when another one lies there, or none."""
    if folder.stage != "evaluate":
        return
    stored = read_fingerprint(folder.run_dir / "config.yaml")
    if stored != run.fingerprint():
        found = "has no trained run" if stored is None else f"holds a run with fingerprint {stored}"
        raise UserError(
            f"{folder.run_dir} {found}, but run {run.run!r} of the config has fingerprint {run.fingerprint()}. "
            "Train it first"
        )


def rewrite_if_finished(folder: Folder, run: Run) -> bool:
    """Give a finished training its output again (Snakemake deleted it to run the rule anew), without training.

    UserError where something is gone that a program of the user's own had left behind.
    """
    kept = folder.home / FINISHED
    if folder.stage != "train" or history.read_json(kept).get("fingerprint") != run.fingerprint():
        return False
    if absent := own.absent_outputs(own.files(run, folder.run_dir).get("outputs", [])):
        raise UserError(
            f"run {run.run!r} is finished, but {absent[0]} of its entry.outputs is not there any more: put it back, or "
            f"delete {kept} to have it made again"
        )
    publish(kept, folder.out)
    return True


def keep_finished(folder: Folder) -> None:
    """Keep a copy of the output where Snakemake does not delete it."""
    if folder.stage == "train":
        publish(folder.out, folder.home / FINISHED)


def publish(source: Path, target: Path) -> None:
    """A copy that appears whole or not at all."""
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    with source.open("rb") as old, beside.open("wb") as new:
        shutil.copyfileobj(old, new)
        new.flush()
        os.fsync(new.fileno())  # else a power cut may leave the new name on an empty file
    beside.replace(target)


def refuse_repetition(folder: Folder, retry: int, life: Life | None = None) -> None:
    """End a later try before it costs anything when it would change nothing."""
    if why := history.why_not_again(folder.launches, folder.run_dir, retry, life):
        raise UserError(f"{why}. Mend it and start again", status=DO_NOT_RUN_AGAIN)


def make_spec(run: Run, folder: Folder, hosts: list[str], where: str, /, **more: Any) -> Spec:
    """The spec of the next attempt. `more` overrides fields (deadline, cpus_per_task, and what tests need)."""
    attempt = (history.attempts(folder.launches) or [0])[-1] + 1
    launch = run.launch
    num_nodes = len(hosts)
    values: dict[str, Any] = {
        "stage": folder.stage,
        "run": run.run,
        "run_dir": str(folder.run_dir),
        "out": str(folder.out),
        "config_path": str(folder.home / "config.yaml"),
        "attempt": attempt,
        "num_nodes": num_nodes,
        "hosts": hosts,
        "where": where,
        "launch_dir": str(folder.launches / str(attempt)),
        "gpus_per_node": None if launch.gpus_per_node is None else [launch.gpus_per_node] * num_nodes,
        "device": launch.device,
        "devices": None if launch.devices is None else list(launch.devices),
        **own.fields_of_spec(run, folder.stage, folder.run_dir),
        "dist_backend": launch.dist_backend,
        "start": launch.start,
        "preload": [*PRELOAD, f"trainpkg.{folder.stage}"],
        "ports": None if launch.ports is None else list(launch.ports),
        "master_addr": launch.master_addr,
        "timeouts": Timeouts(
            rollcall_s=launch.rollcall_timeout_s,
            start_s=launch.start_timeout_s,
            init_s=launch.init_timeout_s,
            heartbeat_s=launch.heartbeat_timeout_s,
            stop_grace_s=launch.stop_grace_s,
            save_grace_s=launch.save_grace_s,
            save_s=run.checkpoint.timeout_s,
            progress_s=launch.progress_timeout_s,
            end_s=launch.end_timeout_s,
        ),
        "max_restarts": launch.max_restarts,
        "began_unix_s": time.time(),
        "deadline_lead_s": run.slurm.lead_s(),
        "env": launch.env,
        "env_prepend": launch.env_prepend,
        "preset": launch.preset,
        "prologue": list(launch.prologue),
        "wrapper": launch.wrapper,
        "python": launch.python,
        "srun_args": launch.srun_args,
        "cpus_per_task": run.slurm.cpus_per_task,
        "code_hash": facts.code_hash(),
        "nonce": secrets.token_hex(8),
    }
    return Spec(**(values | more))


def open_attempt(spec: Spec, folder: Folder, run: Run, retry: int = 1, life: Life | None = None) -> None:
    """Write config.yaml, spec.json and the beginning of attempt.json."""
    seen = inputs.stamps(run) if folder.stage == "train" else {}  # before anything is written: one may not be there
    Path(spec.launch_dir).mkdir(parents=True)
    tree = run.tree() | {"fingerprint": run.fingerprint()}
    beside = Path(spec.config_path).with_name(
        ".config.yaml"
    )  # a torn one would tell nothing of the run that lies there
    beside.write_text(yaml.safe_dump(tree, sort_keys=False))
    publish(beside, Path(spec.config_path))
    beside.unlink()
    inputs.keep(folder.run_dir, seen)
    spec.write(Path(spec.launch_dir) / "spec.json")
    begun = {
        "stage": spec.stage,
        "attempt": spec.attempt,
        "slurm_job_id": spec.slurm_job_id,
        "job": life.job if life else None,
        "restarts": life.restarts if life else None,
        "retry": retry,
        "host": socket.gethostname(),
        "hosts": spec.hosts,
        "start": time.time(),
        "saved_before": history.saved_step(folder.run_dir),
        "counts_steps": not spec.silent,
        "verdict": None,  # as long as nobody wrote one, the attempt runs or was killed
        "status": None,
    }
    _write_attempt(spec, begun)


def close_attempt(spec: Spec, folder: Folder, outcome: Outcome) -> None:
    """Write the verdict into attempt.json."""
    ended = {
        "end": time.time(),
        "verdict": outcome.verdict,
        "status": outcome.status,
        "cause": outcome.sentence or None,
        "run_again": outcome.run_again,
        "step_first": outcome.step_first,
        "step_last": outcome.step_last,
        "saved_after": history.saved_step(folder.run_dir),
        "generations": outcome.generations,
        "failure": dataclasses.asdict(outcome.failure) if outcome.failure else None,
    }
    _write_attempt(spec, history.read_attempt(folder.launches, spec.attempt) | ended)


def _write_attempt(spec: Spec, tree: dict[str, Any]) -> None:
    path = Path(spec.launch_dir) / "attempt.json"
    beside = path.with_name(".attempt.json")
    beside.write_text(json.dumps(tree, indent=1) + "\n")
    beside.replace(path)
