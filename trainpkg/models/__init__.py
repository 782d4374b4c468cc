"""The built-in networks, and the user's own. They know nothing of ranks, devices or files."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from trainpkg import named
from trainpkg.config import Model, OwnModel
from trainpkg.errors import UserError
from trainpkg.models.conv import Conv
from trainpkg.models.gpt import GPT
from trainpkg.models.vit import ViT

HOST = torch.device("cpu")
KINDS: dict[str, Callable[[Any], nn.Module]] = {"conv": Conv, "vit": ViT, "gpt": GPT}


def build(config: Model, device: torch.device = HOST) -> nn.Module:
    """The network that `model.name` asks for, on the meta device: shapes without memory.

    A class says in a method `initialise(name, tensor)` how its weights are filled later: one whole parameter or buffer
    at a time, on the host, from torch's global generator. A class without it is built for real, from that generator, or
    on another `device`: on the meta device too has it shapes alone.
    Weights of a file go in with `load_state_dict(weights, assign=True)`.
    """
    if isinstance(config, OwnModel):
        return _own(config, device)
    with torch.device("meta"):
        return KINDS[config.name](config)


def _own(config: OwnModel, device: torch.device) -> nn.Module:
    kind = named.load("model.name", config.name)
    with torch.device("meta") if hasattr(kind, "initialise") else device:
        model = named.call("model", config.name, kind, config.kwargs)
    if not isinstance(model, nn.Module):
        raise UserError(f"model.name = {config.name!r}: it made {type(model).__name__}, no torch.nn.Module")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise UserError(f"model.name = {config.name!r}: it has no parameter that could be trained")
    return model
