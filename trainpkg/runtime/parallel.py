"""How a model is spread over the ranks: single, ddp, fsdp, hsdp. Wraps a model from outside; models know nothing of it.

Weights and gradients belong to all ranks, also where some of them share sequences: then a rank's loss is the mean over
its piece, pieces are equally long, and the average over all ranks is what it was.

All share one set of methods, and the loop never asks which one it has. A model tells its repeated parts in an
attribute `blocks` (nn.ModuleList): those are sharded, compiled and recomputed one by one. The precision of the passes
belongs here as well, in training and evaluation alike.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, MixedPrecisionPolicy, OffloadPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from trainpkg.config import Run
from trainpkg.errors import UserError
from trainpkg.runtime import blocks, initial, mesh, sequence
from trainpkg.runtime.distributed import RankContext, require_equal
from trainpkg.runtime.mesh import local
from trainpkg.runtime.seeding import mix, seed_all

LossFunction = Callable[[nn.Module, Any], Tensor]
PRECISIONS = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Single:
    """One process, or the parts that are the same for all strategies."""

    name: ClassVar[str] = "single"

    def __init__(self, ctx: RankContext, run: Run, module: nn.Module) -> None:
        self.ctx = ctx
        self.run = run
        self.precision = PRECISIONS[run.train.precision]
        self.pieces = sequence.share(ctx, run.sequence_parallel, module)
        self.module = self._placed(module)
        shards_on = torch.device("cpu") if run.fsdp.cpu_offload else None
        initial.fill(self.module, run.seed, ctx.device, shards_on)
        self.model: nn.Module = self.module  # what the training loop calls

    @functools.cached_property
    def _weights(self) -> list[nn.Parameter]:
        """Found once: walking through the modules takes longer than their gradients' norm in a small model."""
        return list(self.module.parameters())

    @property
    def data_rank(self) -> int:
        """Which of `data_world_size` shares of the samples this rank works on; ranks that share sequences have one."""
        return self.ctx.rank // self.pieces.size

    @property
    def data_world_size(self) -> int:
        return self.ctx.world_size // self.pieces.size

    def _placed(self, module: nn.Module) -> nn.Module:
        """Sharded, or as it is: before its weights have memory."""
        return module

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        """Precision of forward passes, in training and evaluation alike."""
        return torch.autocast(self.ctx.device.type, self.precision, enabled=self.precision != torch.float32)

    def accumulating(self, last: bool) -> contextlib.AbstractContextManager[Any]:
        """Around forward and backward of one micro-batch; gradients are reduced over the ranks by the last one."""
        return contextlib.nullcontext()

    def warm_up(self, loss: LossFunction, batch: Any) -> None:
        """Bring the wrapper into the state that a resumed run and an uninterrupted one share."""

    def sum_over_shards(self, value: Tensor) -> Tensor:
        """The sum of a value that each rank has for its part of the parameters."""
        return value

    def clip(self, max_norm: float | None, scale: Tensor | None = None) -> Tensor:
        """Divide all gradients by `scale`, then bring them to a global norm of at most `max_norm`.

        Returns the norm before that, of the gradients without scale: 0-dim, on the device, equal on all ranks; infinite
        or NaN where a gradient of any rank is.
        """
        gradients = [local(p.grad) for p in self._weights if p.grad is not None]
        norms = torch.stack(torch._foreach_norm(gradients))
        norm = self.sum_over_shards(norms.square().sum()).sqrt()
        if scale is not None:
            norm = norm / scale
        if max_norm is not None:
            factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
            torch._foreach_mul_(gradients, factor if scale is None else factor / scale)
        elif scale is not None:
            torch._foreach_div_(gradients, scale)
        return norm

    def broadcast_buffers(self) -> None:
        """Rank 0's buffers on all ranks (running statistics differ by rank): before evaluating and before saving."""
        if self.ctx.world_size > 1:
            for buffer in self.module.buffers():
                dense = buffer.detach().contiguous()  # gloo garbles strided tensors without a word
                dist.broadcast(dense, src=0)
                if dense.data_ptr() != buffer.data_ptr():
                    buffer.detach().copy_(dense)

    def gather_again(self) -> None:
        """Weights were changed behind the wrapper's back: what it holds of old ones is dropped."""


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
            find_unused_parameters=run.ddp.find_unused_parameters,
        )

    @contextlib.contextmanager
    def accumulating(self, last: bool) -> Iterator[None]:
        model = cast(DistributedDataParallel, self.model)
        with contextlib.nullcontext() if last else model.no_sync():
            try:
                yield
            except RuntimeError as error:
                if "find_unused_parameters" not in str(error):
                    raise
                raise self._unused(str(error)) from error

    def warm_up(self, loss: LossFunction, batch: Any) -> None:
        """One throw-away backward, with buffers and generators put back.

        DDP sorts its buckets by the order of arrival after the first backward. Without this the first step of a
        resumed run would sum in another order than the same step of an uninterrupted run. UserError for parameters
        that get no gradient: DDP itself would only complain in the next step, and by their numbers.
        """
        buffers = [b.detach().clone() for b in self.module.buffers()]
        cpu_rng = torch.get_rng_state()
        cuda_rng = torch.cuda.get_rng_state(self.ctx.device) if self.ctx.device.type == "cuda" else None
        with self.autocast():
            value = loss(self.model, batch)
        value.backward()  # type: ignore[no-untyped-call]
        unused = [name for name, p in self.module.named_parameters() if p.requires_grad and p.grad is None]
        if unused and not self.run.ddp.find_unused_parameters:
            raise self._unused(f"no gradient in a first pass: {named(unused)}")
        self.module.zero_grad(set_to_none=True)
        for buffer, before in zip(self.module.buffers(), buffers, strict=True):
            buffer.detach().copy_(before)
        torch.set_rng_state(cpu_rng)
        if cuda_rng is not None:
            torch.cuda.set_rng_state(cuda_rng, self.ctx.device)

    def _unused(self, text: str) -> UserError:
        """From the reducer's words, which count parameters, or ours."""
        _, found, numbers = text.partition(f"for rank {self.ctx.rank}:")
        if found:
            names = [name for name, p in self.module.named_parameters() if p.requires_grad]
            counted = [int(word) for word in numbers.split("\n")[0].split() if word.isdigit()]
            text = f"no gradient in the last step on rank {self.ctx.rank}: {named([names[i] for i in counted])}"
        elif text.startswith("Expected"):
            text = f"rank {self.ctx.rank} used all its parameters in the last step, another rank did not"
        return UserError(
            f"ddp: {text}. Data parallel waits for a gradient of every parameter: use them in each step, freeze them "
            "(requires_grad = False), or set ddp.find_unused_parameters: true"
        )


class Fsdp(Single):
    """Parameters, gradients and optimizer state sharded over all ranks (FSDP2)."""

    name = "fsdp"

    def _placed(self, module: nn.Module) -> nn.Module:
        run = self.run
        half = self.precision != torch.float32
        # Gradients are summed in fp32 whatever the precision of the passes.
        policy = MixedPrecisionPolicy(param_dtype=self.precision, reduce_dtype=torch.float32) if half else None
        places = self._mesh(self.ctx)
        self._shards = places.get_group(places.ndim - 1)
        settings: dict[str, Any] = {
            "mesh": places,
            "reshard_after_forward": run.fsdp.reshard_after_forward,
            "mp_policy": policy or MixedPrecisionPolicy(),
            "offload_policy": CPUOffloadPolicy() if run.fsdp.cpu_offload else OffloadPolicy(),
        }
        for block in getattr(module, "blocks", ()):
            fully_shard(block, **settings)
        self._root: FSDPModule = fully_shard(module, **settings)
        return module

    def _mesh(self, ctx: RankContext) -> mesh.DeviceMesh:
        return mesh.one_row(ctx)

    def autocast(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext()  # the policy above casts

    @contextlib.contextmanager
    def accumulating(self, last: bool) -> Iterator[None]:
        self._root.set_requires_gradient_sync(last or self.run.fsdp.reduce_every_microbatch)
        yield

    def sum_over_shards(self, value: Tensor) -> Tensor:
        value = value.to(self.ctx.device)  # from the host, where shards are kept there
        dist.all_reduce(value, group=self._shards)
        return value

    def gather_again(self) -> None:
        for part in self.module.modules():
            if isinstance(part, FSDPModule):
                part.reshard()


class Hsdp(Fsdp):
    """Sharded over the ranks of a node, the same on every node: gathering stays inside, gradients cross once."""

    name = "hsdp"

    def _mesh(self, ctx: RankContext) -> mesh.DeviceMesh:
        return mesh.nodes_by_ranks(ctx)


STRATEGIES: dict[str, type[Single]] = {kind.name: kind for kind in (Single, Ddp, Fsdp, Hsdp)}


def spread(ctx: RankContext, run: Run, build: Callable[[], nn.Module]) -> Single:
    """The run's strategy around the model that `build` makes, with its initial weights. Collective.

    `build`: see `models.build`; it finds torch seeded, equally on all ranks. Seeds of all generators are changed.
    UserError for `single` on several ranks, for `hsdp` on nodes with unequal numbers of ranks, and for a model that was
    built with other weights on other ranks.
    """
    name = run.strategy_for(ctx.world_size)
    if name == "single" and ctx.world_size > 1:
        raise UserError(f"strategy = 'single' contradicts WORLD_SIZE = {ctx.world_size}; use ddp or fsdp")
    seed_all(mix("weights", run.seed))
    module = build()
    require_equal(ctx, "what the model's constructor puts into its weights", initial.digest(module))
    blocks.prepare(run.train, module)
    return STRATEGIES[name](ctx, run, module)


def named(names: list[str], most: int = 8) -> str:
    """The first of many names, and how many there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
