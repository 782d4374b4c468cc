"""One resolved run, and the workflow's own config; which keys contradict each other; the fingerprint."""

from __future__ import annotations

import hashlib
import json
import os
import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, model_validator

from trainpkg.config import features, parts, site, starts, submission
from trainpkg.config.execution import Launch, Slurm, Smoke
from trainpkg.config.keys import Section, execution, flat_section, flatten, identity, identity_of
from trainpkg.config.names import Kwargs, TaskName
from trainpkg.config.optimisation import Ema, Optim
from trainpkg.config.sources import Data
from trainpkg.config.training import Checkpoint, Ddp, Evaluate, Fsdp, Logging, Profile
from trainpkg.config.work import Entry, Model, Train


class Run(Section):
    """One resolved run: a row of the sheet over its recipe over the workflow's defaults."""

    run: str = execution(..., "Name; also the directory.", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    recipe: str = execution(..., "Name of the file in the recipes folder, without .yaml.")
    entry: Entry | None = identity(None, "A program of your own.")
    inputs: tuple[str, ...] = execution(
        (), "Files that must be there first, such as another workflow's results; when they change the run begins anew."
    )
    # Required, unless a program of the user's own is trained: then they are None, whatever their types say.
    task: TaskName = identity(
        None, "images: classification; language: prediction of the next byte or token; or package.module:name."
    )
    task_kwargs: Kwargs | None = identity(None, "Arguments of your own task's class or function.")
    seed: int = identity(0, "Seed of weights, data order and dropout.", ge=0)
    strategy: Annotated[Literal["single", "ddp", "fsdp", "hsdp"] | None, BeforeValidator(features.refuse_pipeline)] = (
        execution(
            None, "fsdp: sharded over all ranks; hsdp: over those of a node. Left out: ddp, or single for one rank."
        )
    )
    sequence_parallel: int = execution(1, "Ranks that share each sequence (gpt): divides them and model.heads.", ge=1)
    model: Model = identity(None, "The network.")
    data: Data = identity(None, "The data set.")
    optim: Optim = identity(Optim(), "Optimisation.")
    ema: Ema | None = identity(None, "Averaged weights.")
    train: Train = identity(None, "Length, batch and precision.")
    ddp: Ddp = execution(Ddp(), "Data parallel.")
    fsdp: Fsdp = execution(Fsdp(), "Sharding.")
    checkpoint: Checkpoint = execution(Checkpoint(), "Saving.")
    logging: Logging = execution(Logging(), "Records.")
    evaluate: Evaluate = execution(Evaluate(), "Evaluation.")
    profile: Profile | None = execution(None, "A look at some steps.")
    smoke: Smoke = execution(Smoke(), "Smoke test.")
    launch: Launch = execution(Launch(), "Launching.")
    slurm: Slurm = execution(Slurm(), "Slurm.")

    @model_validator(mode="after")
    def _keys_agree(self) -> Run:
        problems = disagreements(self)
        if problems:
            raise ValueError("; ".join(problems))
        return self

    @property
    def own_program(self) -> bool:
        """Whether a program of the user's is trained: his script on any backend, or what launch.command starts."""
        return self.entry is not None or self.launch.foreign

    @property
    def num_ranks(self) -> int | None:
        """World size where the config alone says it, else None."""
        if self.launch.gpus_per_node is not None:
            return self.launch.nodes * self.launch.gpus_per_node
        if self.launch.device == "cpu":
            return self.launch.nodes
        return None

    def strategy_for(self, world_size: int) -> str:
        """The strategy given, or ddp on several ranks and single on one."""
        return self.strategy or ("ddp" if world_size > 1 else "single")

    def fingerprint(self) -> str:
        """16 hex digits over the identity keys: equal for runs that compute the same."""
        tree = {name: value for name, value in identity_of(self).items() if name not in starts.OPTIONAL or value}
        if self.launch.foreign:
            tree["command"] = self.launch.command
            tree.pop("entry", None)  # then it names what the program leaves behind, at most
        text = json.dumps(tree, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def smallest(self) -> Run:
        """With the least that Slurm can be asked for: for a job that will only say why it does not start."""
        launch = {"nodes": 1, "gpus_per_node": 1, "device": "cpu"}
        slurm: dict[str, Any] = {"gpu_request": "none", "cpus_per_task": 1, "mem_mb": 1000, "runtime": "5"}
        slurm |= {"nodelist": None, "exclude": None}
        sections = {"launch": self.launch.model_copy(update=launch), "slurm": self.slurm.model_copy(update=slurm)}
        return self.model_copy(update=sections)

    def flat(self) -> dict[str, Any]:
        """All keys as `section.key: value`."""
        flat: dict[str, Any] = {}
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, Section):
                flat.update(flat_section(value, name))
            elif isinstance(value, dict):
                flat.update(flatten(value, f"{name}."))
            elif value is not None or name not in starts.OPTIONAL:
                flat[name] = list(value) if isinstance(value, tuple) else value
        return flat

    def tree(self) -> dict[str, Any]:
        """All keys as JSON has them, without the sections that a program of the user's own stands for."""
        absent = {name for name in starts.OPTIONAL if getattr(self, name) is None}
        return self.model_dump(mode="json", exclude=absent)


def expanded(text: str) -> str:
    """A path with `~` and variables put in, once and for all: rules, launcher and tables must mean the same folder."""
    path = os.path.expanduser(os.path.expandvars(text))  # noqa: PTH111
    if "$" in path or path.startswith("~"):
        raise ValueError(f"{path!r} still holds a variable or user that this machine does not know")
    return path


Place = Annotated[str, AfterValidator(expanded)]


class Workflow(Section):
    """config/config.yaml: where things are, and sections for all runs that recipe and sheet may override."""

    results_dir: Place = execution("results", "Where everything is written; on a cluster a scratch file system.")
    sheet: Place = execution("config/runs.tsv", "The sheet of runs: one row per run.")
    recipes: Place = execution("config/recipes", "Folder of the recipes.")
    checkpoint: Checkpoint = execution(Checkpoint(), "Saving.")
    logging: Logging = execution(Logging(), "Records.")
    evaluate: Evaluate = execution(Evaluate(), "Evaluation.")
    smoke: Smoke = execution(Smoke(), "Smoke test.")
    launch: Launch = execution(Launch(), "Launching.")
    slurm: Slurm = execution(Slurm(), "Slurm.")


def disagreements(run: Run) -> list[str]:
    """Sentences on keys that contradict each other, each key named with its value."""
    found = [*starts.disagreements(run), *submission.disagreements(run.slurm), *site.disagreements(run.launch)]
    if missing := starts.missing(run):
        return [*found, *missing]
    ours = [] if run.own_program else [*parts.disagreements(run), *features.disagreements(run)]
    return [*found, *ours, *_launch(run)]


def _launch(run: Run) -> list[str]:
    found = []
    if run.launch.devices is not None and run.launch.gpus_per_node not in (None, len(run.launch.devices)):
        found.append(
            f"launch.devices = {list(run.launch.devices)} names {len(run.launch.devices)} devices, "
            f"launch.gpus_per_node = {run.launch.gpus_per_node}"
        )
    master = run.launch.master_addr or ""
    if (
        run.launch.nodes > 1
        and run.launch.where == "slurm"
        and re.match(r"localhost(\.|$)|127\.|0\.0\.0\.0$|::1?$", master)
    ):
        found.append(
            f"launch.master_addr = {master!r} for launch.nodes = {run.launch.nodes}: each node would wait for itself; "
            "give an address of the first node that the others reach, or leave it out"
        )
    return found
