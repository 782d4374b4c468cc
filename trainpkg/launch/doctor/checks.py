"""What the doctor looks at, where people type and on a compute node, in the order of the table; all at once.

Each check has a thread of its own: a stat on a dead file server or a name service without an answer costs its own row
and no more.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from trainpkg.launch.doctor import cluster, fabric, gpus, limits, names, software, storage
from trainpkg.launch.doctor.machine import Machine, Wanted
from trainpkg.launch.doctor.rows import WARN, Row

Check = Callable[[Machine, Wanted], Row | list[Row]]
LIMIT_S = 30.0

NODE: Sequence[Check] = (
    software.python,
    software.torch,
    software.nccl,
    software.code,
    software.cuda_paths,
    software.search_path,
    gpus.gpus,
    limits.cpus,
    limits.shared_memory,
    limits.open_files,
    limits.locked_memory,
    storage.temporary,
    fabric.interfaces,
    fabric.named_interfaces,
    fabric.infiniband,
    fabric.named_hcas,
    fabric.firewall,
    names.own_name,
    names.name_service,
    names.proxies,
)
LOGIN: Sequence[Check] = (*NODE, storage.results, cluster.slurm)
ON_NODE: Sequence[Check] = (*NODE, software.settings)


class Examination:
    """Checks under way."""

    def __init__(self, machine: Machine, wanted: Wanted, checks: Sequence[Check]) -> None:
        self._found: list[list[Row] | None] = [None] * len(checks)
        self._checks = checks
        self._threads = [
            threading.Thread(target=self._look, args=(index, check, machine, wanted), daemon=True)
            for index, check in enumerate(checks)
        ]
        for thread in self._threads:
            thread.start()

    def _look(self, index: int, check: Check, machine: Machine, wanted: Wanted) -> None:
        try:
            rows = check(machine, wanted)
        except Exception as error:  # noqa: BLE001  # the doctor never ends a job by a mistake of its own
            text = f"could not be looked at: {type(error).__name__}: {error}"
            rows = Row(_name(check), text, WARN, "Please report this.")
        self._found[index] = rows if isinstance(rows, list) else [rows]

    @property
    def done(self) -> bool:
        return not any(thread.is_alive() for thread in self._threads)

    def rows(self) -> list[Row]:
        """What is found so far; a check that is still under way is a row that says so."""
        late = "Find out what hangs: a file server, the name service or a driver that does not answer."
        found = zip(self._checks, self._found, strict=True)
        return [
            row
            for check, rows in found
            for row in (rows if rows is not None else [Row(_name(check), "no answer in time", WARN, late)])
        ]


def examine(machine: Machine, wanted: Wanted, checks: Sequence[Check], limit_s: float = LIMIT_S) -> list[Row]:
    """All rows, after at most so many seconds."""
    under_way = Examination(machine, wanted, checks)
    end = time.monotonic() + limit_s
    while not under_way.done and time.monotonic() < end:
        time.sleep(0.01)
    return under_way.rows()


def _name(check: Check) -> str:
    return getattr(check, "__name__", "check").replace("_", " ")
