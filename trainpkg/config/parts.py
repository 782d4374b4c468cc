"""Which task, model and data set go together. The user's own go with all: what they do not keep is `contract`'s."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from trainpkg.config.names import is_own
from trainpkg.config.sources import Pixels, PythonTextData, TokensData
from trainpkg.config.work import ConvModel, GPTModel, ViTModel

if TYPE_CHECKING:
    from trainpkg.config.run import Run

IMAGES = ("digits", "image_folder", "webdataset", "hf_dataset", "table")
TEXT = ("python_text", "tokens", "hf_dataset")
WANTS = {"images": (("conv", "vit"), IMAGES), "language": (("gpt",), TEXT)}
DEMO = {"conv", "vit", "gpt", "digits", "python_text", "images", "language"}


def disagreements(run: Run) -> Iterator[str]:
    """Sentences on parts that do not fit each other."""
    if run.task in WANTS:
        models, data = WANTS[run.task]
        if not is_own(run.model.name) and run.model.name not in models:
            yield f"model.name = {run.model.name!r} cannot do task = {run.task!r}; it takes {sorted(models)}"
        if not is_own(run.data.name) and run.data.name not in data:
            yield f"data.name = {run.data.name!r} cannot feed task = {run.task!r}; it takes {sorted(data)}"
    if run.task_kwargs and run.task == "language":
        yield f"task_kwargs = {run.task_kwargs}: task = 'language' takes none"
    if run.data.name == "table" and isinstance(run.model, ConvModel | ViTModel):
        yield f"data.name = 'table' with model.name = {run.model.name!r}: rows are no images; name a model of your own"
    yield from _model(run)
    yield from _tokens(run)


def named(run: Run) -> list[str]:
    """What a run's smoke test proves besides its topology: its model, data set and task, where they are not the
    demo's."""
    found = {name: None for name in (run.model.name, run.data.name, run.task) if name not in DEMO}
    return [name.replace(":", ".") for name in found]


def _model(run: Run) -> Iterator[str]:
    model, data = run.model, run.data
    if isinstance(model, ViTModel | GPTModel) and model.dim % model.heads:
        yield f"model.heads = {model.heads} does not divide model.dim = {model.dim}"
    if isinstance(model, ViTModel) and model.side % model.patch:
        yield f"model.patch = {model.patch} does not divide the images' side of {model.side} pixels (model.side)"
    if isinstance(model, ConvModel | ViTModel) and isinstance(data, Pixels):
        for key in ("side", "channels"):
            if getattr(model, key) != getattr(data, key):
                yield f"model.{key} = {getattr(model, key)} contradicts data.{key} = {getattr(data, key)}"


def _tokens(run: Run) -> Iterator[str]:
    if not isinstance(run.data, TokensData | PythonTextData):
        return
    given, model = run.data.context, run.model
    if isinstance(model, GPTModel):
        if given is not None and given > model.context:
            yield f"data.context = {given} is more than model.context = {model.context}, all that the model can see"
    elif given is None:
        yield f"data.context is missing: tokens per sample, which model.name = {model.name!r} does not say"
