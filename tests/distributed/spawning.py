"""A program that calls `trainpkg.launch.spawn` in the way that its first argument names; see test_spawn.py."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from trainpkg.launch import RankFailedError, spawn


def places(local_rank: int, folder: str) -> None:
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    Path(folder, f"rank-{local_rank}").write_text(json.dumps({name: os.environ[name] for name in names}))


def reduce(local_rank: int, folder: str) -> None:
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")  # env://
    total = torch.tensor([local_rank + 1.0])
    dist.all_reduce(total)
    Path(folder, f"sum-{local_rank}").write_text(str(total.item()))
    dist.barrier()
    os._exit(0)


def bad(local_rank: int, kind: str) -> None:
    if local_rank != 1:
        hang(local_rank, "")
    if kind == "raise":
        raise ValueError("the loss is nan")
    if kind == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(7)


def hang(local_rank: int, folder: str) -> None:
    """With three children deaf to SIGTERM: executed, executed in a session of its own, and forked."""
    code = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
    for own_session in (False, True):
        subprocess.Popen([sys.executable, "-c", code], start_new_session=own_session)
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        time.sleep(600)
    if folder:
        Path(folder, f"hangs-{local_rank}").touch()
    time.sleep(600)


def main(how: str, folder: str) -> None:
    if how in ("raise", "kill", "exit"):
        try:
            spawn(bad, (how,), nprocs=3)
        except RankFailedError as error:
            print(json.dumps([error.rank, error.exit_code, error.signal, "in bad" in error.traceback, str(error)]))
    elif how == "join":
        spawn(hang, (folder,), nprocs=2)
    elif how == "handle":
        handle = spawn(hang, (folder,), nprocs=2, join=False)
        print(handle.join(timeout=0.5), len(handle.pids), flush=True)
        if not Path(folder, "kill").exists():
            time.sleep(600)
        handle.kill()
    elif how == "daemon":
        spawn(hang, (folder,), nprocs=2, join=False, daemon=True)
        while len(list(Path(folder).glob("hangs-*"))) < 2:
            time.sleep(0.02)
    elif how == "argument":
        spawn(places, (folder, open(os.devnull)), nprocs=2)  # noqa: PTH123, SIM115
    else:
        assert spawn(places, (folder,), nprocs=3).join()
        spawn(reduce, (folder,), nprocs=2)


if __name__ == "__main__":
    main(*sys.argv[1:])
