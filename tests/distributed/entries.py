"""Ranks for the launcher's tests: small programs that behave well or badly, as TEST_* variables say.

`steps` needs no torch: ranks meet through files, so that a launch takes a fraction of a second. `gloo` joins for real.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


class Report:
    """What runtime/report.py does, in four lines."""

    def __init__(self) -> None:
        self.rank = int(os.environ["RANK"])
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(os.environ["TRAINPKG_REPORT"].replace("@", "\0", 1))

    def tell(self, event: str, **more: Any) -> None:
        self.socket.sendall(json.dumps({"rank": self.rank, "event": event, **more}).encode() + b"\n")


def spec() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(Path(os.environ["TRAINPKG_SPEC"]).read_text())
    return found


class Bad:
    """Misbehaves when rank, step and generation are those of TEST_BAD = kind:rank:step[:generation]."""

    def __init__(self) -> None:
        words = os.environ.get("TEST_BAD", "").split(":")
        self.kind = words[0]
        self.at = tuple(int(word) for word in words[1:3])
        self.generations = {int(word) for word in words[3].split(",")} if len(words) > 3 else None

    def maybe(self, rank: int, step: int, report: Report) -> None:
        generation = int(os.environ["TRAINPKG_GENERATION"])
        if not self.kind or (rank, step) != self.at:
            return
        if self.generations is not None and generation not in self.generations:
            return
        getattr(self, self.kind)(report)

    def kill(self, report: Report) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def segv(self, report: Report) -> None:
        os.kill(os.getpid(), signal.SIGSEGV)

    def exit0(self, report: Report) -> None:
        os._exit(0)

    def exit7(self, report: Report) -> None:
        print("about to exit with 7", flush=True)
        os._exit(7)

    def error(self, report: Report) -> None:
        raise RuntimeError("the loss is nan")

    def user_error(self, report: Report) -> None:
        raise ValueError("optim.lr = 7 is too much")

    def hang(self, report: Report) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)

    def eat(self, report: Report) -> None:
        """Take memory until somebody ends it; without a limit, not more than the test allows."""
        kept, most = [], int(os.environ.get("TEST_EAT_MB", "1000"))
        while len(kept) < most:
            kept.append(b"\1" * (1 << 20))
        raise MemoryError(f"Unable to allocate {most} MB")

    def killnode(self, report: Report) -> None:
        """SIGKILL the launcher of this node: parent of the fork server."""
        zygote = os.getppid()
        parent = int(Path(f"/proc/{zygote}/stat").read_text().rpartition(") ")[2].split()[1])
        os.kill(parent, signal.SIGKILL)
        time.sleep(600)

    def killzygote(self, report: Report) -> None:
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(600)


def leave_grandchildren() -> None:
    """One in the rank's process group and one in a session of its own, both deaf to SIGTERM."""
    code = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    for own_session in (False, True):
        subprocess.Popen([sys.executable, "-c", code, os.environ["TEST_MARK"]], start_new_session=own_session)


def stop_flag() -> list[int]:
    asked: list[int] = []
    for signum in (signal.SIGUSR2, signal.SIGTERM):
        signal.signal(signum, lambda number, _: asked.append(number))
    return asked


class Together:
    """Ranks in step without a process group: counters in one file. No rank is more than a step ahead of another."""

    def __init__(self, folder: Path, rank: int, world: int, asked: list[int]) -> None:
        self.file = os.open(folder / "steps", os.O_RDWR | os.O_CREAT)
        self.rank, self.world, self.asked = rank, world, asked

    def wait(self, value: int) -> None:
        """Until all ranks have come to `value`. A peer that died is never awaited for ever: SIGTERM ends a victim."""
        os.pwrite(self.file, struct.pack("q", value), 8 * self.rank)
        end = None
        while True:
            raw = os.pread(self.file, 8 * self.world, 0)
            if len(raw) == 8 * self.world and min(struct.unpack(f"{self.world}q", raw)) >= value:
                return
            if signal.SIGTERM in self.asked:
                end = end or time.monotonic() + 0.3
                if time.monotonic() > end:
                    os._exit(3)
            time.sleep(0.002)

    def stop_step(self, step: int) -> int:
        """The step at which all stop, as rank 0 has decided; a large number when it has not."""
        place = 8 * (self.world + 1)
        if self.rank == 0 and self.asked and not os.pread(self.file, 8, place):
            os.pwrite(self.file, struct.pack("q", step + 2), place)
        raw = os.pread(self.file, 8, place)
        return struct.unpack("q", raw)[0] if raw else 1 << 60


def steps() -> int:
    """Count to TEST_STEPS at TEST_PACE seconds each, resuming where the last generation or attempt saved."""
    report, asked, bad = Report(), stop_flag(), Bad()
    rank, world, told = report.rank, int(os.environ["WORLD_SIZE"]), spec()
    report.tell("hello", pid=os.getpid())
    if os.environ.get("TEST_GRANDCHILDREN"):
        leave_grandchildren()
    listen = os.environ.get("TRAINPKG_LISTEN_FD")
    assert (listen is not None) == (rank == 0 and told.get("backend") in ("spawn", "srun", "mpi"))
    saved = Path(told["run_dir"], "saved")
    first = int(saved.read_text()) if saved.exists() else 0
    together = Together(Path(told["launch_dir"], os.environ["TRAINPKG_GENERATION"]), rank, world, asked)
    together.wait(1)
    report.tell("joined", seconds=0.0, device="cpu")
    total, pace = int(os.environ.get("TEST_STEPS", "5")), float(os.environ.get("TEST_PACE", "0.02"))
    save_s = float(os.environ.get("TEST_SAVE_S", "0"))
    print(f"rank {rank} of {world} from step {first}", flush=True)
    for name in os.environ.get("TEST_SHOW", "").split():
        print(f"{name}={os.environ.get(name)}", flush=True)
    verdict, step = "finished", first
    try:
        while step < total:
            together.wait(step + 1)
            if step >= together.stop_step(step):
                verdict = "again"
                break
            step += 1
            time.sleep(pace)
            bad.maybe(rank, step, report)
            report.tell("step", step=step, total=total)
            if rank == 0:
                saved.with_suffix(".new").write_text(str(step))
                saved.with_suffix(".new").replace(saved)
                report.tell("saved", step=step, seconds=save_s)
    except Exception as error:  # noqa: BLE001
        text = f"Traceback: {error!r}"
        is_user = isinstance(error, ValueError)
        report.tell("exception", type=type(error).__name__, message=str(error), traceback=text, step=step,
                    victim=False, user_error=is_user)  # fmt: skip
        return 2 if is_user else 1
    if rank == 0 and verdict == "finished":
        Path(told["out"]).write_text(json.dumps({"fingerprint": os.environ.get("TEST_FINGERPRINT"), "steps": step,
                                                 "environment": dict(os.environ)}))  # fmt: skip
    report.tell("done", verdict=verdict, step=step)
    return 0 if verdict == "finished" else 75


def gloo() -> int:
    """Join a real process group through the socket that the node held open, all-reduce, then count as above."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist

    report, bad = Report(), Bad()
    rank, world, told = report.rank, int(os.environ["WORLD_SIZE"]), spec()
    report.tell("hello", pid=os.getpid())
    listen = os.environ.get("TRAINPKG_LISTEN_FD")
    agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), world, is_master=rank == 0 and not agents,
        timeout=timedelta(seconds=30), wait_for_workers=False, master_listen_fd=None if listen is None else int(listen),
    )  # fmt: skip
    begin = time.monotonic()
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world, timeout=timedelta(seconds=30))
    total = torch.tensor([float(rank)])
    dist.all_reduce(total)
    assert total.item() == world * (world - 1) / 2
    report.tell("joined", seconds=time.monotonic() - begin, device="cpu")
    saved = Path(told["run_dir"], "saved")
    step = int(saved.read_text()) if saved.exists() else 0
    last = int(os.environ.get("TEST_STEPS", "20"))
    try:
        while step < last:
            step += 1
            bad.maybe(rank, step, report)
            dist.all_reduce(total)
            time.sleep(0.01)
            report.tell("step", step=step, total=last)
            if rank == 0:
                saved.write_text(str(step))
    except Exception as error:  # noqa: BLE001
        victim = "peer" in str(error)
        report.tell("exception", type=type(error).__name__, message=str(error), traceback=repr(error), step=step,
                    victim=victim, user_error=False)  # fmt: skip
        return 3 if victim else 1
    if rank == 0:
        Path(told["out"]).write_text("{}")
    report.tell("done", verdict="finished", step=step)
    dist.barrier()
    dist.destroy_process_group()
    return 0


def import_error() -> int:
    import no_such_module  # type: ignore[import-not-found]  # noqa: F401

    return 0
