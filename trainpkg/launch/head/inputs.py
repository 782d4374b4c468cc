"""The files that a run needs (`inputs`): there before it starts, and the same ones for as long as it goes on.

Another workflow's rules may make them. Which they are is told by size and time of change, as Snakemake does: a run that
began with others is another run.
"""

from __future__ import annotations

import json
from pathlib import Path

from trainpkg.config import Run
from trainpkg.errors import UserError
from trainpkg.launch.head import history

FILE = "inputs.json"
Stamps = dict[str, list[int]]  # path -> bytes, nanoseconds of the last change


def stamps(run: Run) -> Stamps:
    """Of all inputs, as they are now. Raises UserError naming one that is not there."""
    found: Stamps = {}
    for text in run.inputs:
        try:
            status = Path(text).stat()
        except OSError as error:
            raise UserError(
                f"run {run.run!r}: inputs: {text}: {error.strerror} (looked for from {Path.cwd()}); what makes it has "
                "to run first"
            ) from error
        found[text] = [status.st_size, status.st_mtime_ns]
    return found


def have_changed(run_dir: Path, run: Run) -> bool:
    """Whether the run that lies there is known to have begun with other inputs."""
    known = history.read_json(run_dir / FILE)
    return bool(known) and _in_seconds(known) != _in_seconds(stamps(run))


def _in_seconds(found: Stamps) -> Stamps:
    """As some file systems keep times, and copies of them."""
    return {path: [size, changed_ns // 10**9] for path, (size, changed_ns) in found.items()}


def keep(run_dir: Path, found: Stamps) -> None:
    """Write down with what the run begins, or goes on."""
    path = run_dir / FILE
    if found:
        beside = path.with_name(f".{FILE}")
        beside.write_text(json.dumps(found) + "\n")
        beside.replace(path)
