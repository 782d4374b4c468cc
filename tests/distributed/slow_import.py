"""A module whose import takes TEST_SLOW_IMPORT = host:seconds, on that simulated node alone."""

import os
import time
from pathlib import Path

_host, _, _seconds = os.environ.get("TEST_SLOW_IMPORT", "").partition(":")
_node = Path(f"/proc/{os.getppid()}/cmdline").read_text().split("\0")  # the fork server's parent
if _host and f"--node-rank={_host.removeprefix('sim')}" in _node:
    time.sleep(float(_seconds))
