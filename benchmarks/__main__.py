"""`python -m benchmarks [--only PART ...] [--full]`: measure, keep the results, rewrite tables and plots.

`make bench` calls it. Without --full: 3 repetitions and what fits into half an hour on two cores. `--report` measures
nothing and rewrites tables and plots from the results that are there.
"""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
import time
import traceback

from benchmarks import harness, report

PARTS = (
    "launch", "throughput", "loop", "memory", "checkpoint", "failure", "recovery", "plan", "workflow", "tables", "gpu",
)  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--full", action="store_true", help="every size, at least 5 repetitions, and a Slurm (root)")
    parser.add_argument("--repetitions", type=int, help="3, with --full 5")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    parser.add_argument("--tiny", action="store_true", help="one round at the smallest size; keeps nothing")
    options = parser.parse_args()
    repetitions = 1 if options.tiny else options.repetitions or (5 if options.full else 3)
    scale = harness.Scale(repetitions, options.full, options.tiny)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what is being measured ends with us
    began = time.monotonic()
    parts = [importlib.import_module(f"benchmarks.{name}").PART for name in options.only]
    broken = []
    for part in parts:
        try:
            if not options.report:
                harness.measure(part, scale)
            if not options.tiny:
                report.rewrite(part)
        except Exception:  # noqa: BLE001  the other parts are measured all the same
            traceback.print_exc()
            broken.append(part.name)
    print(f"{(time.monotonic() - began) / 60:.1f} minutes" + (f"; failed: {', '.join(broken)}" if broken else ""))
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
