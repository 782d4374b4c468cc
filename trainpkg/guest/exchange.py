"""The meeting of ranks that nobody of ours has started: at the store, each says where it is, and rank 0 answers all.

Stock torch tells neither which rank is missing nor that two are the same one, and waits for minutes. Here rank 0 sees
each come, and says what is wrong to those that are there.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from trainpkg.errors import UserError
from trainpkg.guest.places import Place, missing, twice

HANG_MARGIN_S = 10.0
HEARD_TIMEOUT_S = 5.0
LOST_PEER = 3


def open_store(rank: int, where: tuple[str, int] | None, env: Mapping[str, str], timeout_s: float) -> Store:
    """The store at MASTER_ADDR:MASTER_PORT: rank 0 serves it, or torchrun's agent does; of a rank alone its own.

    Raises:
        UserError: the port is taken on rank 0's host, or nobody answers there.
    """
    timeout = timedelta(seconds=timeout_s)
    if where is None:
        return TCPStore("127.0.0.1", 0, 1, is_master=True, timeout=timeout, wait_for_workers=False)
    address, port = where
    serves = rank == 0 and env.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    watch = _end_if_it_hangs(timeout_s + HANG_MARGIN_S, f"MASTER_ADDR={address} MASTER_PORT={port}")
    try:
        return TCPStore(address, port, None, is_master=serves, timeout=timeout, wait_for_workers=False)
    except (dist.DistNetworkError, dist.DistStoreError, RuntimeError) as error:
        first = str(error).splitlines()[0]
        if serves:
            raise UserError(
                f"rank 0 cannot listen at MASTER_PORT={port} ({first}). Another program, another run or another rank 0 "
                "on this host has it: take another port"
            ) from error
        raise UserError(
            f"rank {rank} has not reached rank 0 at MASTER_ADDR={address} MASTER_PORT={port} within {timeout_s:g} s "
            f"(launch.init_timeout_s): {first}. Is rank 0 on that host, and did it start? By hand: `nc -v {address} "
            f"{port}`"
        ) from error
    finally:
        watch.cancel()


def _end_if_it_hangs(seconds: float, where: str) -> threading.Timer:
    """torch waits without an end for a listener that is no store."""

    def end() -> None:
        print(
            f"trainpkg: error: {where}: something listens there that is no store of torch", file=sys.stderr, flush=True
        )
        os._exit(LOST_PEER)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    return timer


class Exchange:
    """One rank's part. Keys of an earlier start of the ranks in the same store have another prefix."""

    def __init__(self, store: Store, place: Place, env: Mapping[str, str], timeout_s: float) -> None:
        self.store = PrefixStore(f"trainpkg.guest.{env.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
        self.place, self.timeout_s = place, timeout_s

    def announce(self) -> None:
        """Say where this rank is. The second process of one rank says so under a key of its own."""
        text = json.dumps(self.place.to_dict())
        if self.store.add(f"came/{self.place.rank}", 1) == 1:
            self.store.set(f"place/{self.place.rank}", text)
        else:
            self.store.set(f"twice/{self.store.add('twice', 1)}", text)

    def collect(self) -> list[Place]:
        """All ranks' places, in rank order. For rank 0.

        Raises:
            UserError: a rank came twice, or has not come in time; who is named.
        """
        come: dict[int, Place] = {}
        end = time.monotonic() + self.timeout_s
        world_size = self.place.world_size
        while len(come) < world_size:
            for rank in range(world_size):
                if rank not in come and self.store.check([f"place/{rank}"]):
                    come[rank] = self._read(f"place/{rank}")
            self._refuse_twice(come)
            if time.monotonic() > end:
                raise missing(come, world_size, self.timeout_s)
            time.sleep(0.02)
        self._refuse_twice(come)
        return [come[rank] for rank in range(world_size)]

    def _refuse_twice(self, come: dict[int, Place]) -> None:
        if self.store.add("twice", 0) == 0:
            return
        self.store.wait(["twice/1"], timedelta(seconds=self.timeout_s))
        second = self._read("twice/1")
        self.store.wait([f"place/{second.rank}"], timedelta(seconds=self.timeout_s))
        raise twice(self._read(f"place/{second.rank}"), second, list(come.values()))

    def _read(self, key: str) -> Place:
        return Place(**json.loads(self.store.get(key)))

    def answer(self, message: Mapping[str, Any]) -> None:
        """Rank 0's word to all."""
        self.store.set("answer", json.dumps(message))

    def refuse(self, error: UserError) -> None:
        """Tell all that came why nothing starts."""
        self.answer({"refused": str(error), "status": error.status})
        self.wait_until_heard()

    def wait_until_heard(self) -> None:
        """Give those that came a moment to hear the answer: the store ends with rank 0."""
        others = sum(self.store.add(f"came/{rank}", 0) for rank in range(self.place.world_size)) - 1
        end = time.monotonic() + HEARD_TIMEOUT_S
        while self.store.add("heard", 0) < others and time.monotonic() < end:
            time.sleep(0.02)

    def hear(self, patience_s: float) -> dict[str, Any]:
        """Rank 0's answer. Raises UserError where it refuses, or says nothing."""
        try:
            self.store.wait(["answer"], timedelta(seconds=patience_s))
        except dist.DistError as error:
            raise UserError(f"rank 0 gave no answer within {patience_s:g} s: {str(error).splitlines()[0]}") from error
        message: dict[str, Any] = json.loads(self.store.get("answer"))
        self.store.add("heard", 1)
        if "refused" in message:
            raise UserError(message["refused"], status=int(message["status"]))
        return message


def told_to_all(exchange: Exchange, work: Callable[[], Any]) -> Any:
    """The result of rank 0's `work`; a UserError in it is every rank's."""
    try:
        return work()
    except UserError as error:
        exchange.refuse(error)
        raise
