"""What `trainpkg summarise` costs: seconds and memory over the number of runs, from nothing and with 10 more runs.

`python -m benchmarks.tables [--runs 100 1000 27270] [--folder FOLDER]` writes synthetic results (results_tree.py) and
runs the command on them in a process of its own, three times: with no cache, with 10 more runs, with nothing new. Wall
time is from the command's start to its end, plots included; processor time is of all its processes, peak memory of the
largest. Nothing here passes or fails.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.results_tree import write_runs, write_sheet

MORE = 10


def measured(config: Path) -> tuple[float, float, float]:
    """Wall seconds, processor seconds, and peak memory in MB of one process (the largest) of one `summarise`."""
    began = time.monotonic()
    process = subprocess.Popen([sys.executable, "-m", "trainpkg", "summarise", "--config", str(config)])
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        raise SystemExit(f"summarise ended with status {os.waitstatus_to_exitcode(status)}")
    return time.monotonic() - began, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def measure(folder: Path, num_runs: int) -> None:
    config = write_sheet(folder, num_runs)
    write_runs(config, 0)
    time.sleep(4)  # files younger than that are not relied on
    rows = [("from nothing", num_runs, *measured(config))]
    write_runs(write_sheet(folder, num_runs + MORE), num_runs)
    time.sleep(4)
    rows.append((f"{MORE} more", num_runs + MORE, *measured(config)))
    rows.append(("nothing new", num_runs + MORE, *measured(config)))
    for what, number, wall_s, processor_s, memory_mb in rows:
        print(f"| {number} | {what} | {wall_s:.1f} | {processor_s:.1f} | {memory_mb:.0f} |", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, nargs="+", default=[100, 1000, 10_000, 27_270])
    parser.add_argument("--folder", type=Path, help="on the file system to measure; left out: a temporary one")
    options = parser.parse_args()
    print("| runs | what | wall s | processor s | peak MB |\n|---|---|---|---|---|", flush=True)
    for num_runs in options.runs:
        folder = Path(tempfile.mkdtemp(prefix="trainpkg-tables-", dir=options.folder))
        try:
            measure(folder, num_runs)
        finally:
            shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
