"""What is asked of Slurm and would do harm, or nothing: sentences that name the key, its value and the fix."""

from __future__ import annotations

import shlex

from trainpkg.config.execution import Slurm
from trainpkg.config.keys import once_per_object


def signal_trouble(text: str) -> str | None:
    """What is wrong with a value of sbatch's --signal, such as B:USR1@60; None where it does what it should."""
    flags, _, rest = text.rpartition(":")
    name = rest.partition("@")[0].removeprefix("SIG")
    if "B" in flags:
        return "B: sends it to the batch shell alone, which dies of it; ranks are in a step, which gets it without B:"
    if name == "USR1":
        return "NCCL takes USR1 for itself, so that ranks may never see it; they listen to USR2 (and TERM)"
    if name not in ("USR2", "TERM"):
        return "the ranks listen to USR2 (and TERM)"
    return None


@once_per_object
def disagreements(slurm: Slurm) -> list[str]:
    """Sentences on keys of the section `slurm`."""
    found = []
    if slurm.signal and (trouble := signal_trouble(slurm.signal)):
        found.append(f"slurm.signal = {slurm.signal!r}: {trouble}")
    try:
        names = {word.partition("=")[0] for word in shlex.split(slurm.extra)}
    except ValueError as error:
        return [*found, f"slurm.extra = {slurm.extra!r}: {error}"]
    if "--signal" in names:
        found.append(f"slurm.extra = {slurm.extra!r} has --signal, which the launcher would not know of: slurm.signal")
    if "--open-mode" in names:
        found.append(f"slurm.extra = {slurm.extra!r} has --open-mode: a requeued job must append to its log, and does")
    return found
