"""The trained weights for others: model.safetensors, ema.safetensors where they are averaged, and config.json.

Written by training at its end, and of any checkpoint by the subcommand `export`, which is one process without ranks.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from trainpkg import __version__, sheet
from trainpkg.config import GPTModel, Run, TokensData
from trainpkg.errors import UserError
from trainpkg.runtime import manifest
from trainpkg.runtime.checkpoints import hugging_face, retention, shards, tensors
from trainpkg.runtime.checkpoints.shelf import read_facts
from trainpkg.runtime.distributed import RankContext, broadcast_object, patient
from trainpkg.runtime.parallel import Single
from trainpkg.runtime.update import NoAverage


def write_model(ctx: RankContext, run: Run, strategy: Single, average: NoAverage, folder: Path, step: int) -> None:
    """Whole weights from any strategy, gathered to rank 0, which writes `folder`. Collective.

    UserError on all ranks where the file system refuses; what was there before stays.
    """
    with patient(ctx, "saving", run.checkpoint.timeout_s):
        strategy.broadcast_buffers()
        weights = tensors.full_weights(strategy.module)
        files = {"model": weights}
        if averages := tensors.whole(average.state()):
            files["ema"] = {**weights, **averages}  # a model of its own: buffers are not averaged
        problem = _write(run, files, folder, step) if ctx.is_main else None
        problem = broadcast_object(ctx, problem)
    if problem is not None:
        raise UserError(
            f"the weights cannot be written to {folder}: {problem}; the checkpoints hold them: free space or mend the "
            "permissions, then start again"
        )


def _write(run: Run, files: dict[str, dict[str, Tensor]], folder: Path, step: int) -> str | None:
    """All files, each whole or as before; what went wrong, None if nothing did."""
    facts = facts_of(run, step, files["model"])
    waiting = folder / ".weights.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, weights in files.items():
            save_file(weights, waiting, metadata={"format": "pt", "run": run.run, "step": str(step)})
            manifest.publish_synced(waiting, folder / f"{name}.safetensors")
        manifest.replace_synced(folder / "config.json", json.dumps(facts, indent=1) + "\n")
    except (OSError, SafetensorError) as error:
        with contextlib.suppress(OSError):
            waiting.unlink(missing_ok=True)
        return str(error)
    return None


def facts_of(run: Run, step: int, weights: Mapping[str, Tensor]) -> dict[str, Any]:
    """What config.json says: enough to build the model again, and where it comes from."""
    return {
        "model": run.model.model_dump(mode="json"),
        "data": run.data.model_dump(mode="json"),
        "task": run.task,
        "run": run.run,
        "fingerprint": run.fingerprint(),
        "step": step,
        "num_parameters": sum(weight.numel() for weight in weights.values()),
        "trainpkg": __version__,
    }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    sheet.add_config_arguments(parser)
    parser.epilog = (
        "Loadable without this package: safetensors and JSON. The folder is read back by evaluate.checkpoint and "
        "train.init_from."
    )
    parser.add_argument("--run", required=True, help="name of the run")
    parser.add_argument("--checkpoint", default="last", help="last, best, a step's number, or a path (default: last)")
    parser.add_argument(
        "--weights", choices=("auto", "raw", "ema"), default="auto", help="auto: the averaged ones where there are any"
    )
    parser.add_argument(
        "--format",
        choices=("plain", "huggingface"),
        default="plain",
        help="huggingface: a GPT for transformers, as GPT-2",
    )
    parser.add_argument("--out", type=Path, required=True, help="the new folder")


def main(args: argparse.Namespace) -> int:
    """Write the folder, whole or not at all."""
    loaded = sheet.load(sheet.config_of(args), lazily=True)
    run = loaded.run(args.run)
    if run.own_program:
        raise UserError(f"run {args.run!r} trains a program of your own: what it saves is its own")
    if args.format == "huggingface" and not isinstance(run.model, GPTModel):
        raise UserError(f"--format huggingface: model.name = {run.model.name!r}; only gpt has a counterpart there")
    if args.out.exists():
        raise UserError(f"--out {args.out} is there already: name a new folder, or delete it")
    root = chosen(loaded.results_dir / "runs" / run.run / "checkpoints", args.checkpoint)
    step = int(read_facts(root, run, None)["step"])
    weights, kind = read_weights(root, args.weights)
    facts = facts_of(run, step, weights) | {"weights": kind}
    waiting = args.out.with_name(f".{args.out.name}.tmp")
    shutil.rmtree(waiting, ignore_errors=True)
    waiting.mkdir(parents=True)
    if args.format == "huggingface":
        assert isinstance(run.model, GPTModel)
        write_hugging_face(waiting, run, run.model, weights, facts)
    else:
        save_file(weights, waiting / "model.safetensors", metadata={"format": "pt"})
        (waiting / "config.json").write_text(json.dumps(facts, indent=1) + "\n")
    waiting.rename(args.out)
    print(f"{args.out}: step {step} of {run.run} ({kind} weights), {facts['num_parameters']} parameters")
    return 0


def write_hugging_face(folder: Path, run: Run, model: GPTModel, weights: Mapping[str, Tensor], facts: Any) -> None:
    there = hugging_face.weights_there(weights)
    save_file(there, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(hugging_face.config_of(model, facts), indent=1) + "\n")
    source = Path(run.data.path).expanduser() / "tokenizer.json" if isinstance(run.data, TokensData) else None
    if not hugging_face.write_tokenizer(folder, model, source):
        print(f"no tokenizer is known for these tokens: put tokenizer.json into {folder.name.strip('.')} yourself")


def chosen(folder: Path, which: str) -> Path:
    """The whole checkpoint that `last`, `best`, a step or a path names. UserError where there is none."""
    names = retention.step_names(folder)
    if which == "last":
        roots = [folder / name for name in names]
    elif which == "best":
        roots = [folder / name for name in retention.best_first(folder, names, {})[:1]]
    else:
        roots = [folder / retention.step_name(int(which)) if which.isdigit() else Path(which).expanduser()]
    problems = []
    for root in roots:
        try:
            files = manifest.read_manifest(root)
        except ValueError as error:
            problems.append(str(error))
            continue
        wrong = [text for name, facts in files.items() if (text := manifest.wrong_checksum(root, name, facts))]
        if not wrong:
            return root
        problems += wrong
    there = ", ".join(names) or "no checkpoint"
    raise UserError(f"--checkpoint {which}: {'; '.join(problems) or 'there is none'}. {folder} holds {there}")


def read_weights(root: Path, which: str) -> tuple[dict[str, Tensor], str]:
    """(weights and buffers, whole and by their own names; `raw` or `ema`) of a checkpoint of any number of ranks."""
    index = shards.read_index(root)
    averaged = which != "raw" and any(name.startswith("ema.") for name in index["tensors"])
    if which == "ema" and not averaged:
        raise UserError(f"--weights ema: {root} holds no averaged weights; take raw")
    weights = {}
    for name in index["tensors"]:
        if name.startswith("model."):
            own = name.removeprefix("model.")
            source = f"ema.{own}" if averaged and f"ema.{own}" in index["tensors"] else name
            weights[own] = shards.whole(root, index, source)
    return weights, "ema" if averaged else "raw"
