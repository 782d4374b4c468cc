"""Slurm as people and Snakemake's executor use it: programs, controller, accounting, MPI types, its clock."""

from __future__ import annotations

import re
from pathlib import Path

from trainpkg.launch.doctor.machine import Machine, Wanted
from trainpkg.launch.doctor.rows import BAD, OK, WARN, Row
from trainpkg.launch.doctor.storage import clock_row

NEEDED = ("sbatch", "srun", "squeue", "scontrol", "sinfo", "scancel")
SLOW_S = 2.0  # Snakemake asks sinfo at its start, and starts three times per job
SHORT_MIN_JOB_AGE_S = 60
FROM_SNAKEMAKE = "Snakemake's executor asks them at every start."


def slurm(machine: Machine, wanted: Wanted) -> list[Row]:
    """All rows on Slurm; one where there is none."""
    have = [name for name in NEEDED if machine.which(name)]
    if not have:
        return [Row("Slurm", "none here: nodes are simulated on this machine")]
    rows = [_programs(machine, have)]
    config = machine.run(["scontrol", "show", "config"])
    if config.status != 0:
        if "configuration source" in config.error:
            fix = (
                "On a cluster let SLURM_CONF name slurm.conf; elsewhere leave it: nodes are simulated on this machine."
            )
            return [
                *rows,
                Row("Slurm's controller", "programs are installed, but no slurm.conf leads to one", WARN, fix),
            ]
        fix = "Ask the site: slurmctld must be up, and slurm.conf (or SLURM_CONF) lead to it."
        said = (config.error or config.out).splitlines()[:1]
        return [*rows, Row("Slurm's controller", f"`scontrol show config`: {''.join(said)}", BAD, fix)]
    fields = dict(re.findall(r"^(\S+)[ \t]*=[ \t]*(.*?)[ \t]*$", config.out, re.MULTILINE))
    rows += [_controller(machine, fields, config.seconds), _accounting(machine, fields)]
    return [*rows, *_memory_of_jobs(fields), _mpi(machine, wanted), *_clock(machine)]


def _programs(machine: Machine, have: list[str]) -> Row:
    answer = machine.run(["sbatch", "--version"])
    version = answer.out.strip() or "version unknown"
    lacking = [name for name in NEEDED if name not in have]
    if lacking:
        fix = "Install Slurm's client programs, or load the module that has them."
        return Row("Slurm's programs", f"{version}, without {', '.join(lacking)}", BAD, fix)
    if not machine.which("which"):
        fix = "Install the program `which` (Debian: debianutils): Snakemake's executor ends without it."
        return Row("Slurm's programs", f"{version}; the program `which` is missing", BAD, fix)
    accounting = "" if machine.which("sacct") else ", no sacct"
    return Row("Slurm's programs", f"{version}: {', '.join(NEEDED)}{accounting}", same=version)


def _controller(machine: Machine, fields: dict[str, str], seconds: float) -> Row:
    looked = machine.run(["sinfo", "--noheader", "--format=%P"])
    host = fields.get("SlurmctldHost[0]", "unknown")
    text = f"{host}, sinfo took {looked.seconds:.2f} s, scontrol {seconds:.2f} s"
    if looked.status != 0:
        return Row("Slurm's controller", f"sinfo: {looked.error}", BAD, "Ask the site why sinfo fails.")
    fix = f"Ask the site why the controller is slow: {FROM_SNAKEMAKE}"
    return Row("Slurm's controller", text, WARN if max(looked.seconds, seconds) > SLOW_S else OK, fix)


def _accounting(machine: Machine, fields: dict[str, str]) -> Row:
    """Without a database sacct knows no job, and Snakemake waits for ever, unless it asks squeue."""
    kind = fields.get("AccountingStorageType", "unknown")
    if not (kind.endswith("none") or kind in ("", "(null)")) or not machine.which("sacct"):
        return Row("Slurm's accounting", kind)
    profiles = [Path("cluster") / name for name in ("profile.yaml", "config.yaml")]
    asks_squeue = re.compile(r"^slurm-status-command:\s*[\"']?squeue", re.MULTILINE)
    kind = kind or "no AccountingStorageType"
    if any(asks_squeue.search(path.read_text()) for path in profiles if path.is_file()):
        return Row("Slurm's accounting", f"{kind}; the profile asks squeue")
    fix = (
        "Set slurm-status-command: squeue in cluster/profile.yaml, and leave slurm-init-seconds-before-status-checks "
        "below a third of Slurm's MinJobAge, else sacct is asked all the same: it knows no job without a database."
    )
    return Row("Slurm's accounting", f"{kind}, yet sacct is installed", WARN, fix)


def _memory_of_jobs(fields: dict[str, str]) -> list[Row]:
    """A job that leaves squeue before Snakemake looks is waited for without end."""
    match = re.match(r"(\d+) sec", fields.get("MinJobAge", ""))
    if match is None or int(match[1]) >= SHORT_MIN_JOB_AGE_S:
        return []
    fix = "Ask the site for MinJobAge of 300 s, or use slurm-status-command: sacct with an accounting database."
    return [Row("Slurm's memory of ended jobs", f"{match[1]} s (MinJobAge)", WARN, fix)]


def _mpi(machine: Machine, wanted: Wanted) -> Row:
    answer = machine.run(["srun", "--mpi=list"])
    text = answer.out + answer.error
    kinds = [word for word in re.findall(r"[a-z]\w*", text) if re.fullmatch(r"pmix(_v\d)?|pmi2|none|cray\w*", word)]
    kinds = list(dict.fromkeys(kinds))
    lacking = wanted.backend == "mpi" and not any(kind.startswith("pmi") for kind in kinds)
    fix = "Backend mpi needs pmix or pmi2 in Slurm; else set launch.mpi: mpirun."
    return Row("Slurm's MPI types", ", ".join(kinds) or "none told", BAD if lacking else OK, fix)


def _clock(machine: Machine) -> list[Row]:
    """sdiag prints the controller's time as it answers."""
    before = machine.clock()
    answer = machine.run(["sdiag"])
    match = re.search(r"^sdiag output at .*\((\d+)\)", answer.out, re.MULTILINE)
    if match is None:
        return []
    skew = int(match[1]) + 0.5 - (before + machine.clock()) / 2  # whole seconds
    return [clock_row("clock, controller", skew if abs(skew) > 1 else 0.0, "the controller's")]
