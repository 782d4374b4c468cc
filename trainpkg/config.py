"""The configuration of one run: typed, closed, frozen.

Every key says what it means, and whether it belongs to the run's identity (what is computed: another value is another
run, which starts anew) or to its execution (where and how it is computed: may change between attempts). Reading files,
merging them and reporting errors belong to `sheet`; JSON Schema and the key table to `schema`.
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

IDENTITY = {"identity": True}
EXECUTION = {"identity": False}


def identity(default: Any = ..., description: str = "", **limits: Any) -> Any:
    """A key whose change makes another run."""
    return Field(default, description=description, json_schema_extra=dict(IDENTITY), **limits)


def execution(default: Any = ..., description: str = "", **limits: Any) -> Any:
    """A key that may change from attempt to attempt of one run."""
    return Field(default, description=description, json_schema_extra=dict(EXECUTION), **limits)


class Section(BaseModel):
    """A closed, frozen group of keys. Text from a sheet is read as the key's own type (`1e-4` is a number)."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, coerce_numbers_to_str=True, protected_namespaces=()
    )


class ConvModel(Section):
    """A small residual-free conv net for small images."""

    name: Literal["conv"]
    width: int = identity(32, "Channels of the first stage; the second has twice as many.", ge=1)
    dropout: float = identity(0.1, "Dropout before the classifier.", ge=0, lt=1)


class ViTModel(Section):
    """A small vision transformer."""

    name: Literal["vit"]
    dim: int = identity(64, "Width of the residual stream.", ge=1)
    depth: int = identity(4, "Number of blocks.", ge=1)
    heads: int = identity(4, "Attention heads; must divide dim.", ge=1)
    patch: int = identity(2, "Side of a patch in pixels; must divide the image's side.", ge=1)
    dropout: float = identity(0.0, "Dropout in attention and MLP.", ge=0, lt=1)


class GPTModel(Section):
    """A small byte-level GPT."""

    name: Literal["gpt"]
    dim: int = identity(128, "Width of the residual stream.", ge=1)
    depth: int = identity(4, "Number of blocks.", ge=1)
    heads: int = identity(4, "Attention heads; must divide dim.", ge=1)
    context: int = identity(128, "Tokens that a prediction can see.", ge=1)
    dropout: float = identity(0.0, "Dropout in attention and MLP.", ge=0, lt=1)


class DigitsData(Section):
    """The 1,797 handwritten digits (8 x 8 pixels) that ship with scikit-learn."""

    name: Literal["digits"]
    test_fraction: float = identity(0.2, "Share of the images held out for evaluation.", gt=0, lt=1)


class PythonTextData(Section):
    """The source text of Python's standard library on this machine, as bytes."""

    name: Literal["python_text"]
    max_bytes: int = identity(4_000_000, "Bytes used, training and validation together.", ge=10_000)
    validation_fraction: float = identity(0.05, "Share of the files held out for validation.", gt=0, lt=1)


Model = Annotated[ConvModel | ViTModel | GPTModel, Field(discriminator="name")]
Data = Annotated[DigitsData | PythonTextData, Field(discriminator="name")]


class Optim(Section):
    """Optimiser and learning-rate schedule."""

    name: Literal["adamw"] = identity("adamw", "Optimiser.")
    lr: float = identity(1e-3, "Peak learning rate; never scaled by the number of nodes.", gt=0)
    min_lr_ratio: float = identity(0.1, "Last learning rate as a share of the peak.", ge=0, le=1)
    weight_decay: float = identity(0.01, "Decoupled weight decay, on matrices only.", ge=0)
    beta1: float = identity(0.9, "Decay of the first moment.", ge=0, lt=1)
    beta2: float = identity(0.95, "Decay of the second moment.", ge=0, lt=1)
    warmup_steps: int = identity(20, "Steps of linear warm-up.", ge=0)
    schedule: Literal["cosine", "constant"] = identity("cosine", "Learning rate after the warm-up.")
    clip_norm: float | None = identity(1.0, "Largest global gradient norm; null: no clipping.", gt=0)


class Train(Section):
    """How long, how much at once, in which precision."""

    max_steps: int = identity(..., "Optimiser steps of the whole run.", ge=1)
    global_batch: int = identity(..., "Samples per optimiser step over all ranks.", ge=1)
    accumulation: int = execution(1, "Micro-batches per step and rank; divides memory, not the result.", ge=1)
    precision: Literal["fp32", "bf16"] = identity("fp32", "bf16: forward and backward in bfloat16, weights in fp32.")


class Fsdp(Section):
    """Keys of strategy fsdp (FSDP2 `fully_shard`, per block)."""

    reshard_after_forward: bool = execution(True, "Free gathered weights between forward and backward.")


class Launch(Section):
    """Where ranks run and how they start."""

    where: Literal["auto", "slurm", "local"] = execution("auto", "auto: Slurm inside a Slurm job, else this machine.")
    nodes: int = execution(1, "Nodes; simulated on one machine where there is no Slurm.", ge=1)
    gpus_per_node: int | None = execution(
        None, "GPUs (processes on a CPU run) per node; left out: all that the node shows, one process on a CPU.", ge=1
    )
    device: Literal["auto", "cpu", "cuda"] = execution("auto", "What torch uses; auto: cuda where a node shows GPUs.")
    devices: tuple[int, ...] | None = execution(None, "Subset of each node's visible GPUs, by position.", min_length=1)
    backend: Literal["spawn"] = execution("spawn", "How ranks start: spawn (one node process per node forks them).")
    start: Literal["fork", "exec"] = execution("fork", "fork: from one process that imported torch; exec: one each.")
    dist_backend: Literal["auto", "gloo", "nccl"] = execution("auto", "auto: nccl on GPUs, gloo on CPUs.")
    env: dict[str, str] = execution({}, "Variables set for all ranks (replacing the node's own).")
    rollcall_timeout_s: float = execution(60.0, "From the first node's answer to the last one's.", gt=0)
    start_timeout_s: float = execution(600.0, "From the start to the first node's answer.", gt=0)
    init_timeout_s: float = execution(60.0, "For the process group and its first all-reduce.", gt=0)
    collective_timeout_s: float = execution(600.0, "For any later collective operation.", gt=0)
    heartbeat_timeout_s: float = execution(60.0, "A node silent for so long, without a step done, is lost.", gt=0)
    stop_grace_s: float = execution(3.0, "Between the request to end and SIGKILL after a failure.", ge=0)
    max_restarts: int = execution(2, "Restarts of all ranks in place after a failure.", ge=0)


class Slurm(Section):
    """What is asked of Slurm. Keys left out fall to the profile's default-resources."""

    partition: str | None = execution(None, "Partition.")
    smoke_partition: str | None = execution(None, "Partition of the smoke test; left out: the run's own.")
    account: str | None = execution(None, "Account.")
    qos: str | None = execution(None, "Quality of service.")
    constraint: str | None = execution(None, "Features that nodes must have.")
    nodelist: str | None = execution(None, "Nodes that must be part of the job.")
    exclude: str | None = execution(None, "Nodes that must not.")
    gpu_type: str | None = execution(
        None, "GPU type as Slurm names it, such as a100 or a100-sxm4.", pattern=r"^[\w.-]+$"
    )
    gpu_request: Literal["gres", "gpus-per-node", "none"] = execution("gres", "How GPUs are asked for.")
    cpus_per_task: int = execution(4, "CPUs of each node's launcher and all its ranks.", ge=1)
    mem_mb: int | None = execution(None, "Memory per node in MB; 0: all of the node.", ge=0)
    runtime: str | None = execution(None, "Time limit: minutes, or text such as 12h.")
    signal: str | None = execution(
        "USR2@120", "Warning signal and seconds before the limit; null: none (the clock still works).",
        pattern=r"^(SIG)?[A-Z0-9]+@\d+$",
    )  # fmt: skip
    extra: str = execution("", "Further sbatch options, appended to ours.")


class Checkpoint(Section):
    """When checkpoints are saved and which are kept."""

    every_steps: int = execution(100, "Steps between checkpoints; the last step always saves.", ge=1)
    keep_last: int = execution(2, "Newest checkpoints kept.", ge=1)


class Logging(Section):
    """What is written to metrics.jsonl, and how often."""

    every_steps: int = execution(10, "Steps between records.", ge=1)
    eval_every_steps: int = execution(100, "Steps between evaluations during training; the last step always.", ge=1)


class Evaluate(Section):
    """The rule `evaluate`."""

    batch: int = execution(256, "Samples per forward pass and rank.", ge=1)
    nodes: int | None = execution(None, "Nodes; left out: those of the run.", ge=1)


class Smoke(Section):
    """The rule `smoke`."""

    max_nodes: int = execution(2, "Most nodes that a smoke test takes.", ge=1)
    megabytes: float = execution(4.0, "Size of the bandwidth test's message.", gt=0)
    runtime: str = execution("10", "Time limit of the Slurm job.")


class Run(Section):
    """One resolved run: a row of the sheet over its recipe over the workflow's defaults."""

    run: str = execution(..., "Name; also the directory.", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    recipe: str = execution(..., "Name of the file in the recipes folder, without .yaml.")
    task: Literal["images", "language"] = identity(..., "images: classification; language: next-byte prediction.")
    seed: int = identity(0, "Seed of weights, data order and dropout.", ge=0)
    strategy: Literal["single", "ddp", "fsdp"] | None = execution(None, "Left out: ddp, or single for one rank.")
    model: Model = identity(..., "The network.")
    data: Data = identity(..., "The data set.")
    optim: Optim = identity(Optim(), "Optimisation.")
    train: Train = identity(..., "Length, batch and precision.")
    fsdp: Fsdp = execution(Fsdp(), "Sharding.")
    checkpoint: Checkpoint = execution(Checkpoint(), "Saving.")
    logging: Logging = execution(Logging(), "Records.")
    evaluate: Evaluate = execution(Evaluate(), "Evaluation.")
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
        text = json.dumps(_identity_of(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def flat(self) -> dict[str, Any]:
        """All keys as `section.key: value`."""
        return flatten(self.model_dump(mode="json"))


class Workflow(Section):
    """config/config.yaml: where things are, and sections that hold for all runs unless recipe or sheet say otherwise."""

    results_dir: str = execution("results", "Where everything is written; on a cluster a scratch file system.")
    sheet: str = execution("config/runs.tsv", "The sheet of runs: one row per run.")
    recipes: str = execution("config/recipes", "Folder of the recipes.")
    checkpoint: Checkpoint = execution(Checkpoint(), "Saving.")
    logging: Logging = execution(Logging(), "Records.")
    evaluate: Evaluate = execution(Evaluate(), "Evaluation.")
    smoke: Smoke = execution(Smoke(), "Smoke test.")
    launch: Launch = execution(Launch(), "Launching.")
    slurm: Slurm = execution(Slurm(), "Slurm.")


def disagreements(run: Run) -> list[str]:
    """Sentences on keys that contradict each other, each key named with its value."""
    found = []
    wants = {"images": ({"conv", "vit"}, {"digits"}), "language": ({"gpt"}, {"python_text"})}
    models, data = wants[run.task]
    if run.model.name not in models:
        found.append(f"model.name = {run.model.name!r} cannot do task = {run.task!r}; it takes {sorted(models)}")
    if run.data.name not in data:
        found.append(f"data.name = {run.data.name!r} cannot feed task = {run.task!r}; it takes {sorted(data)}")
    if not isinstance(run.model, ConvModel) and run.model.dim % run.model.heads:
        found.append(f"model.heads = {run.model.heads} does not divide model.dim = {run.model.dim}")
    ranks = run.num_ranks
    if ranks is not None and run.train.global_batch % (ranks * run.train.accumulation):
        found.append(
            f"train.global_batch = {run.train.global_batch} is no multiple of "
            f"ranks x train.accumulation = {ranks} x {run.train.accumulation}"
        )
    if run.strategy == "single" and (ranks or 1) > 1:
        found.append(f"strategy = 'single' contradicts {ranks} ranks (launch.nodes x launch.gpus_per_node); use ddp")
    if run.launch.devices is not None and run.launch.gpus_per_node not in (None, len(run.launch.devices)):
        found.append(
            f"launch.devices = {list(run.launch.devices)} names {len(run.launch.devices)} devices, "
            f"launch.gpus_per_node = {run.launch.gpus_per_node}"
        )
    return found


def _identity_of(section: Section) -> dict[str, Any]:
    kept = {}
    for name, field in type(section).model_fields.items():
        extra = field.json_schema_extra
        value = getattr(section, name)
        if isinstance(extra, dict) and not extra["identity"]:
            continue
        kept[name] = _identity_of(value) if isinstance(value, Section) else value
    return kept


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"a": {"b": 1}}` as `{"a.b": 1}`; free-form mappings (launch.env) stay whole."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        if isinstance(value, dict) and prefix + name != "launch.env":
            flat.update(flatten(value, f"{prefix}{name}."))
        else:
            flat[prefix + name] = value
    return flat
