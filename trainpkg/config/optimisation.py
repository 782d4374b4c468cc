"""Sections that say how weights follow gradients: optimiser, schedule, averaging."""

from __future__ import annotations

from typing import Literal

from trainpkg.config.keys import Section, identity


class Optim(Section):
    """Optimiser and learning-rate schedule."""

    name: Literal["adamw", "sgd", "muon"] = identity(
        "adamw", "Optimiser. muon: for the matrices of the blocks, AdamW for all else."
    )
    lr: float = identity(1e-3, "Peak learning rate; never scaled by the number of nodes.", gt=0)
    lr_scaling: Literal["none", "linear", "sqrt"] = identity(
        "none", "How lr, meant for base_batch, grows with train.global_batch / optim.base_batch."
    )
    base_batch: int | None = identity(None, "Global batch that lr is meant for, where it is scaled.", ge=1)
    min_lr_ratio: float = identity(0.1, "Last learning rate as a share of the peak.", ge=0, le=1)
    weight_decay: float = identity(0.01, "Decoupled weight decay (with sgd: L2), on what optim.decay says.", ge=0)
    decay: Literal["matrices", "all"] = identity("matrices", "What decays; matrices: no biases, norms, other vectors.")
    beta1: float = identity(0.9, "Decay of the first moment (adamw).", ge=0, lt=1)
    beta2: float = identity(0.95, "Decay of the second moment (adamw).", ge=0, lt=1)
    momentum: float = identity(0.9, "Momentum (sgd, muon).", ge=0, lt=1)
    muon_lr: float = identity(0.02, "Peak learning rate of the matrices under muon.", gt=0)
    warmup_steps: int = identity(20, "Steps of linear warm-up.", ge=0)
    schedule: Literal["cosine", "linear", "constant", "wsd"] = identity(
        "cosine", "Learning rate after the warm-up; wsd: constant, then linearly down in the last steps."
    )
    cooldown: float = identity(0.2, "Share of train.max_steps in which wsd goes down.", gt=0, le=1)
    clip_norm: float | None = identity(1.0, "Largest global gradient norm; null: no clipping.", gt=0)


class Ema(Section):
    """An exponential moving average of the weights, kept beside them."""

    decay: float = identity(0.999, "Share of the average that stays at each update.", gt=0, lt=1)
    every_steps: int = identity(1, "Steps between updates.", ge=1)
