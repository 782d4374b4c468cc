"""Batches in the order in which they are asked for: made by the rank when it needs them, or ahead by worker processes.

Workers are torch's DataLoader's, forked from the rank. torch advises against a fork once there are threads, and gloo's
or NCCL's are there; but a worker touches neither, and what it does use (Python, malloc, stdio) is made safe across a
fork by those themselves: no hang in thousands of forks amid collectives, 10 ms where a fresh interpreter needs a second
and 200 MB for its own torch, and data sets need not be picklable. Which samples come when is `feed`'s and `order`'s.
"""

from __future__ import annotations

import functools
import gc
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.process import BaseProcess
from multiprocessing.util import Finalize
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.data import DataLoader

from trainpkg.data import Batch, Dataset
from trainpkg.launch.processes import die_with_parent
from trainpkg.runtime.signals import SIGNALS

Request = tuple[Tensor, Tensor | None]  # indices and seeds of the samples of one batch
T = TypeVar("T")


def loaded(
    dataset: Dataset, requests: Iterable[Request], device: torch.device, num_workers: int, ahead: int = 1
) -> Iterator[Batch]:
    """The batches asked for, in this order, on `device`.

    Workers begin with the first `ahead` requests, or more, at once, and with a further one whenever a batch is taken.
    They end with the iterator, or with the rank. An exception in one is raised here, the death of one in whatever the
    rank is doing.
    """
    if num_workers:
        batches = _by_workers(dataset, requests, num_workers, ahead, pin=device.type == "cuda")
    else:
        batches = (dataset.batch(*request) for request in requests)
    return _copied(batches, device) if device.type == "cuda" else batches


def answered(ask: Callable[[], T], num_workers: int) -> T:
    """What `ask` finds out from samples: by a worker that ends with it, if the rank has workers at all.

    A file that a data set opens meanwhile must not be the rank's: later workers would share its place with each other.
    """
    request = (torch.empty(0), None)
    answer: T = next(loaded(cast(Any, _Asked(ask)), [request], torch.device("cpu"), min(num_workers, 1)))
    return answer


def _copied(batches: Iterator[Batch], device: torch.device) -> Iterator[Batch]:
    """Batches on the GPU. A copy has a stream of its own, so that it is made while the step before is computed."""
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    for batch in batches:
        with torch.cuda.stream(stream):
            there = tree_map_only(Tensor, lambda part: part.to(device, non_blocking=True), batch)
        current = torch.cuda.current_stream(device)
        current.wait_stream(stream)
        for part in tree_leaves(there):
            if isinstance(part, Tensor):
                part.record_stream(current)  # its memory is not given to the next copy before this step is done with it
        yield there


class _Asked:
    """A data set whose only batch is an answer."""

    def __init__(self, ask: Callable[[], Any]) -> None:
        self._ask = ask

    def batch(self, *request: Any) -> Any:
        return self._ask()


class _Batches:
    """A data set whose samples, to the DataLoader, are whole batches. Numbers travel by value, tensors as files."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset = dataset

    def __getitem__(self, request: tuple[Any, Any]) -> Batch:
        indices, seeds = request
        return self._dataset.batch(torch.from_numpy(indices), None if seeds is None else torch.from_numpy(seeds))


def _by_workers(
    dataset: Dataset, requests: Iterable[Request], num_workers: int, ahead: int, pin: bool
) -> Iterator[Batch]:
    loader: DataLoader[Batch] = DataLoader(
        cast(Any, _Batches(dataset)),
        batch_size=None,
        sampler=cast(Any, ((np.asarray(i), None if s is None else np.asarray(s)) for i, s in requests)),
        num_workers=num_workers,
        prefetch_factor=max(2, -(-ahead // num_workers)),
        pin_memory=pin,
        multiprocessing_context="fork",
        worker_init_fn=functools.partial(_begin, os.getpid()),
        generator=torch.Generator(),  # the rank's own must not depend on the number of workers
    )
    # Held back until the worker can ignore them, or a signal to the whole process group would end it in between.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        batches: Any = iter(loader)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    # At the end of a process that still has it, python would ask its workers by SIGTERM, and wait for them forever.
    Finalize(batches, _kill, (batches._workers,), exitpriority=0)
    return cast(Iterator[Batch], batches)


def _kill(workers: Iterable[BaseProcess]) -> None:
    for worker in workers:
        worker.kill()


def _begin(rank_pid: int, number: int) -> None:
    """A worker's first act: when to stop is its rank's decision alone, and it ends with its rank, however that ends."""
    for one in SIGNALS:
        signal.signal(one, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
    die_with_parent(signal.SIGKILL)
    if os.getppid() != rank_pid:  # it ended before the line above
        os._exit(1)
    # Which samples are whose is decided by who asks: data that divide themselves by worker would lose some.
    torch.utils.data._utils.worker._worker_info = None
    os.environ["OMP_NUM_THREADS"] = "1"  # for libraries that a data set imports only now; torch has its own already
    gc.freeze()  # what the rank left behind is not the worker's to collect: its process group least of all
