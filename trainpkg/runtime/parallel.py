"""How a model is spread over the ranks: single, ddp, fsdp. Wraps a model from outside; models know nothing of it.

The three share one set of methods, and the loop never asks which one it has. A model tells its repeated parts in an
attribute `blocks` (nn.ModuleList); fsdp shards those one by one, then the rest.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from trainpkg.config import Run
from trainpkg.errors import UserError
from trainpkg.runtime.distributed import RankContext

LossFunction = Callable[[nn.Module, Any], Tensor]


class Single:
    """One process, or the parts that are the same for all strategies."""

    name = "single"

    def __init__(self, ctx: RankContext, run: Run, module: nn.Module) -> None:
        self.ctx = ctx
        self.run = run
        self.module = module.to(ctx.device)
        self.model: nn.Module = self.module  # what the training loop calls

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Precision of forward passes, in training and evaluation alike."""
        bf16 = self.run.train.precision == "bf16"
        return torch.autocast(self.ctx.device.type, dtype=torch.bfloat16, enabled=bf16)

    def accumulating(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        """Around forward and backward of one micro-batch; gradients are reduced over the ranks by the last one."""
        return contextlib.nullcontext()

    def warm_up(self, loss: LossFunction, batch: Any) -> None:
        """Bring the wrapper into the state that a resumed run and an uninterrupted one share."""

    def sum_over_shards(self, value: Tensor) -> Tensor:
        """The sum of a value that each rank has for its part of the parameters."""
        return value

    def clip(self, max_norm: float | None) -> Tensor:
        """Scale all gradients to a global norm of at most `max_norm`; returns the norm before, 0-dim, on the device."""
        gradients = [local(p.grad) for p in self.module.parameters() if p.grad is not None]
        norms = torch.stack(torch._foreach_norm(gradients))
        norm = self.sum_over_shards(norms.square().sum()).sqrt()
        if max_norm is not None:
            torch._foreach_mul_(gradients, torch.clamp(max_norm / (norm + 1e-6), max=1.0))
        return norm

    def broadcast_buffers(self) -> None:
        """Rank 0's buffers on all ranks (running statistics differ by rank): before evaluating and before saving."""
        if self.ctx.world_size > 1:
            for buffer in self.module.buffers():
                dense = buffer.detach().contiguous()  # gloo garbles strided tensors without a word
                dist.broadcast(dense, src=0)
                if dense.data_ptr() != buffer.data_ptr():
                    buffer.detach().copy_(dense)


class Ddp(Single):
    """Every rank holds the whole model; gradients are averaged."""

    name = "ddp"

    def __init__(self, ctx: RankContext, run: Run, module: nn.Module) -> None:
        super().__init__(ctx, run, module)
        self.model = DistributedDataParallel(
            self.module,
            device_ids=[ctx.device.index] if ctx.device.type == "cuda" else None,
            gradient_as_bucket_view=True,
            forward_sync_buffers=False,  # once before evaluating and saving is enough, and costs less
        )

    def accumulating(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        model = cast(DistributedDataParallel, self.model)
        return contextlib.nullcontext() if last else model.no_sync()

    def warm_up(self, loss: LossFunction, batch: Any) -> None:
        """One throw-away backward, with buffers and generators put back.

        DDP sorts its buckets by the order of arrival after the first backward. Without this the first step of a
        resumed run would sum in another order than the same step of an uninterrupted run.
        """
        buffers = [b.detach().clone() for b in self.module.buffers()]
        cpu_rng = torch.get_rng_state()
        cuda_rng = torch.cuda.get_rng_state(self.ctx.device) if self.ctx.device.type == "cuda" else None
        with self.autocast():
            value = loss(self.model, batch)
        value.backward()  # type: ignore[no-untyped-call]
        self.module.zero_grad(set_to_none=True)
        for buffer, before in zip(self.module.buffers(), buffers, strict=True):
            buffer.detach().copy_(before)
        torch.set_rng_state(cpu_rng)
        if cuda_rng is not None:
            torch.cuda.set_rng_state(cuda_rng, self.ctx.device)


class Fsdp(Single):
    """Parameters, gradients and optimizer state sharded over all ranks (FSDP2)."""

    name = "fsdp"

    def __init__(self, ctx: RankContext, run: Run, module: nn.Module) -> None:
        super().__init__(ctx, run, module)
        bf16 = run.train.precision == "bf16"
        # Gradients are summed in fp32 whatever the precision of the passes.
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32) if bf16 else None
        world = dist.group.WORLD
        assert world is not None, "ranks join before a model is spread"
        settings: dict[str, Any] = {
            # The very group of `distributed`, so that its collective timeout holds here too.
            "mesh": DeviceMesh.from_group(world, ctx.device.type, mesh_dim_names=("shard",)),
            "reshard_after_forward": run.fsdp.reshard_after_forward,
            "mp_policy": policy or MixedPrecisionPolicy(),
        }
        for block in getattr(self.module, "blocks", ()):
            fully_shard(block, **settings)
        self._root: FSDPModule = fully_shard(self.module, **settings)

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()  # the policy above casts

    @contextlib.contextmanager
    def accumulating(self, last: bool) -> Iterator[None]:
        self._root.set_requires_gradient_sync(last or self.run.fsdp.reduce_every_microbatch)
        yield

    def sum_over_shards(self, value: Tensor) -> Tensor:
        dist.all_reduce(value)
        return value


STRATEGIES: dict[str, type[Single]] = {"single": Single, "ddp": Ddp, "fsdp": Fsdp}


def spread(ctx: RankContext, run: Run, module: nn.Module) -> Single:
    """The run's strategy around `module`, whose weights must be equal on all ranks.

    UserError for `single` on several ranks.
    """
    name = run.strategy_for(ctx.world_size)
    if name == "single" and ctx.world_size > 1:
        raise UserError(f"strategy = 'single' contradicts WORLD_SIZE = {ctx.world_size}; use ddp or fsdp")
    return STRATEGIES[name](ctx, run, module)


def local(gradient: Tensor) -> Tensor:
    return gradient.to_local() if isinstance(gradient, DTensor) else gradient
