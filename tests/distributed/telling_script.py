"""A user's own script that tells how far it is, and knows no torch: `telling_script.py WAY PLACE`.

WAY: log (by trainpkg.log) or lines (JSON lines into PLACE/lines.jsonl). Rank 0 leaves PLACE/model.bin behind. USR2
makes it keep its step in PLACE/step and end with 75; it goes on from there. TEST_LAST is its last step, and
TEST_KILL=rank:step:generation kills a rank.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

import trainpkg

asked = False


def on_warning(signum: int, frame: FrameType | None) -> None:
    global asked
    asked = True


def main() -> None:
    way, place, last = sys.argv[1], Path(sys.argv[2]), int(os.environ["TEST_LAST"])
    rank = int(os.environ["RANK"])
    signal.signal(signal.SIGUSR2, on_warning)
    kept = place / "step"
    first = int(kept.read_text()) + 1 if kept.exists() else 1
    kill = os.environ.get("TEST_KILL", "").split(":")
    for step in range(first, last + 1):
        time.sleep(0.02)
        numbers = {"loss": 1 / step, "samples": 8 * step, "accuracy": step / last}
        if way == "log":
            trainpkg.log(step, **numbers)
        elif rank == 0:
            with (place / "lines.jsonl").open("a") as file:
                print(json.dumps({"global_step": step, "learning_rate": 0.1, "model": "small", **numbers}), file=file)
        if kill == [str(rank), str(step), os.environ["TRAINPKG_GENERATION"]]:
            os.kill(os.getpid(), signal.SIGKILL)
        if asked:
            if rank == 0:
                kept.write_text(str(step))
            sys.exit(75)
    if rank == 0:
        (place / "model.bin").write_bytes(b"12345")


if __name__ == "__main__":
    main()
