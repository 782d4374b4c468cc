"""Snakemake with looks at the queue every two seconds: `python -P tests/cluster/quick.py` for `snakemake`.

The executor waits ten seconds longer after each look at which no job has ended. No option turns that off; it suits jobs
of hours; tests would sleep through most of their time.
"""

from __future__ import annotations

import sys

import snakemake_executor_plugin_slurm
from snakemake.cli import main

LOOK_S = 2
snakemake_executor_plugin_slurm.Executor.next_seconds_between_status_checks = property(
    lambda executor: LOOK_S, lambda executor, seconds: None
)

if __name__ == "__main__":
    sys.exit(main())
