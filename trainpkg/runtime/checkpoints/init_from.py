"""Weights of a checkpoint or a model folder that train.init_from names, or evaluate.checkpoint a folder: weights only.

Names and shapes must be those of the run's model, neither more nor less; a GPT's may be those of Hugging Face's GPT-2.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from trainpkg.errors import UserError
from trainpkg.runtime import initial, manifest
from trainpkg.runtime.checkpoints import hugging_face, shards, tensors
from trainpkg.runtime.checkpoints.shelf import Shelf
from trainpkg.runtime.distributed import broadcast_object, gather_objects
from trainpkg.runtime.parallel import named

KEY = "train.init_from"
WEIGHTS, AVERAGES = "model.safetensors", "ema.safetensors"
Shapes = Mapping[str, Sequence[int]]


def load(shelf: Shelf, module: nn.Module, begin: str) -> None:
    """Fill the model in place. Collective. UserError for what is missing, damaged or does not fit the model."""
    path = Path(begin).expanduser().absolute()
    weights = tensors.of_model(module)
    if is_folder(shelf, path):
        load_folder(shelf, module, path / WEIGHTS, KEY)
        return
    if broadcast_object(shelf.ctx, path.is_dir() and not (path / manifest.MANIFEST).exists()):
        raise UserError(f"{KEY} = {begin!r}: {path} holds neither {WEIGHTS} nor {manifest.MANIFEST} of a checkpoint")
    root = shelf.require_whole(KEY, begin, path)
    saved = {
        name: entry["shape"] for name, entry in shards.read_index(root)["tensors"].items() if name.startswith("model.")
    }
    _require_fit(root, saved, weights, KEY)
    shards.load(root, weights)


def facts_of(folder: Path) -> dict[str, Any]:
    """What we wrote into config.json of a model folder; nothing where others wrote it."""
    try:
        tree = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError):
        return {}
    facts: dict[str, Any] = tree["trainpkg"] if isinstance(tree.get("trainpkg"), dict) else tree
    return facts


def choose(shelf: Shelf, folder: Path, weights: str) -> tuple[Path, str, int]:
    """(file, `raw` or `ema`, step) of what `evaluate.weights` asks of a model folder. UserError without. Collective."""
    facts = facts_of(folder) if shelf.ctx.is_main else {}
    averages, kind, step = broadcast_object(
        shelf.ctx, ((folder / AVERAGES).is_file(), str(facts.get("weights", "raw")), int(facts.get("step", 0)))
    )
    if weights != "raw" and averages:
        return folder / AVERAGES, "ema", step
    if weights not in ("auto", kind):
        raise UserError(f"evaluate.weights = {weights!r}: {folder} holds {kind} weights alone; take auto or {kind}")
    return folder / WEIGHTS, kind, step


def is_folder(shelf: Shelf, path: Path) -> bool:
    """Whether `path` is a model folder, as rank 0 sees it. Collective."""
    found: bool = broadcast_object(shelf.ctx, (path / WEIGHTS).is_file())
    return found


@torch.no_grad()
def load_folder(shelf: Shelf, module: nn.Module, path: Path, key: str) -> None:
    """The file `path` into the model. Each rank reads what it needs, one tensor at a time: no rank holds all of it.

    UserError on all ranks, which names `key`.
    """
    problem = None
    weights = {name.removeprefix("model."): weight for name, weight in tensors.of_model(module).items()}
    try:
        with safe_open(path, "pt") as file:
            pairs = hugging_face.sources(weights, file.keys())
            shapes = {name: file.get_slice(source).get_shape() for name, (source, _) in pairs.items()}
            found = {name: shape[::-1] if pairs[name][1] else shape for name, shape in shapes.items()}
            others = hugging_face.not_read(file.keys(), (source for source, _ in pairs.values()))
            _require_fit(path, {**found, **dict.fromkeys(others, ())}, weights, key)
            for name, (source, turned) in pairs.items():
                whole = file.get_tensor(source)
                initial.keep(whole.T.contiguous() if turned else whole, weights[name])
    except (OSError, SafetensorError, UserError) as error:
        problem = str(error) if isinstance(error, UserError) else f"{key}: {path} cannot be read: {error}"
    problems = [text for text in gather_objects(shelf.ctx, problem) if text]
    if problems:
        raise UserError(problems[0])


def _require_fit(source: Path, found: Shapes, weights: Mapping[str, Tensor], key: str) -> None:
    wanted = {name: list(weight.shape) for name, weight in weights.items()}
    other = [
        f"{n} of {list(found[n])}, wanted {wanted[n]}" for n in wanted if n in found and list(found[n]) != wanted[n]
    ]
    rows = {"missing": wanted.keys() - found.keys(), "not of this model": found.keys() - wanted.keys()}
    said = [f"{what}: {named(sorted(names))}" for what, names in rows.items() if names]
    said += [f"other shapes: {named(other)}"] if other else []
    if said:
        text = "; ".join(said).replace("model.", "")
        raise UserError(f"{key}: the weights in {source} are not those of this run's model: {text}")
