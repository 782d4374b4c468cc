"""What the doctor looks at, where people type and on a compute node, in the order of the table."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trainpkg.launch.doctor import cluster, fabric, gpus, limits, names, software, storage
from trainpkg.launch.doctor.machine import Machine, Wanted
from trainpkg.launch.doctor.rows import WARN, Row

Check = Callable[[Machine, Wanted], Row | list[Row]]

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


def examine(machine: Machine, wanted: Wanted, checks: Sequence[Check]) -> list[Row]:
    """All rows. A check that itself fails is a row too: the doctor never ends a job by its own mistake."""
    found: list[Row] = []
    for check in checks:
        try:
            rows = check(machine, wanted)
        except (OSError, ValueError, ArithmeticError, LookupError) as error:
            name = check.__name__.replace("_", " ")
            rows = Row(name, f"could not be looked at: {type(error).__name__}: {error}", WARN, "Please report this.")
        found += rows if isinstance(rows, list) else [rows]
    return found
