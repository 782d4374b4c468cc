"""The weights that a run begins with, where train.init_from names a checkpoint or a model folder: weights only.

Names and shapes must be those of the run's model, neither more nor less.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from trainpkg.errors import UserError
from trainpkg.runtime import initial, manifest
from trainpkg.runtime.checkpoints import shards, tensors
from trainpkg.runtime.checkpoints.shelf import Shelf
from trainpkg.runtime.distributed import broadcast_object, gather_objects
from trainpkg.runtime.parallel import named

KEY = "train.init_from"
WEIGHTS = "model.safetensors"
Shapes = Mapping[str, Sequence[int]]


def load(shelf: Shelf, module: nn.Module, begin: str) -> None:
    """Fill the model in place. Collective. UserError for what is missing, damaged or does not fit the model."""
    path = Path(begin).expanduser().absolute()
    weights = tensors.of_model(module)
    if broadcast_object(shelf.ctx, (path / WEIGHTS).is_file()):
        _load_folder(shelf, weights, path / WEIGHTS)
        return
    if broadcast_object(shelf.ctx, path.is_dir() and not (path / manifest.MANIFEST).exists()):
        raise UserError(f"{KEY} = {begin!r}: {path} holds neither {WEIGHTS} nor {manifest.MANIFEST} of a checkpoint")
    root = shelf.require_whole(KEY, begin, path)
    saved = {
        name: entry["shape"] for name, entry in shards.read_index(root)["tensors"].items() if name.startswith("model.")
    }
    _require_fit(root, saved, weights)
    shards.load(root, weights)


@torch.no_grad()
def _load_folder(shelf: Shelf, weights: Mapping[str, Tensor], path: Path) -> None:
    """Each rank reads what it needs, one tensor at a time: no rank holds the whole model."""
    problem = None
    try:
        with safe_open(path, "pt") as file:
            names = file.keys()
            _require_fit(path, {f"model.{name}": file.get_slice(name).get_shape() for name in names}, weights)
            for name, weight in weights.items():
                initial.keep(file.get_tensor(name.removeprefix("model.")), weight)
    except (OSError, SafetensorError, UserError) as error:
        problem = str(error) if isinstance(error, UserError) else f"{KEY}: {path} cannot be read: {error}"
    problems = [text for text in gather_objects(shelf.ctx, problem) if text]
    if problems:
        raise UserError(problems[0])


def _require_fit(source: Path, found: Shapes, weights: Mapping[str, Tensor]) -> None:
    wanted = {name: list(weight.shape) for name, weight in weights.items()}
    other = [
        f"{n} of {list(found[n])}, wanted {wanted[n]}" for n in wanted if n in found and list(found[n]) != wanted[n]
    ]
    rows = {"missing": wanted.keys() - found.keys(), "not of this model": found.keys() - wanted.keys()}
    said = [f"{what}: {named(sorted(names))}" for what, names in rows.items() if names]
    said += [f"other shapes: {named(other)}"] if other else []
    if said:
        text = "; ".join(said).replace("model.", "")
        raise UserError(f"{KEY}: the weights in {source} are not those of this run's model: {text}")
