"""GPUs without torch: device files, driver, and whether torch's CUDA is one that the driver can serve."""

from __future__ import annotations

import re

from trainpkg.errors import UserError
from trainpkg.launch.doctor.machine import Machine, Wanted
from trainpkg.launch.doctor.rows import BAD, OK, WARN, Row
from trainpkg.launch.doctor.software import find_package, torch_version
from trainpkg.launch.slurm.grammar import parse_devices

LEAST_DRIVER = {"11": 450, "12": 525, "13": 580}  # NVIDIA's table of minor version compatibility


def gpus(machine: Machine, wanted: Wanted) -> list[Row]:
    """How many, of what kind, and with which driver."""
    files = [name for name in machine.names_in("/dev") if re.fullmatch(r"nvidia\d+", name)]
    match = re.search(r"Kernel Module\D*(\d+(?:\.\d+)+)", machine.read("/proc/driver/nvidia/version"))
    driver = match[1] if match else ""
    rows = [_devices(machine, wanted, files)]
    if files or driver:
        rows += [_driver(machine, wanted, files, driver), *_asked(machine)]
    return rows


def _devices(machine: Machine, wanted: Wanted, files: list[str]) -> Row:
    shown = machine.env.get("CUDA_VISIBLE_DEVICES")
    text = f"{len(files)} device files" + ("" if shown is None else f", CUDA_VISIBLE_DEVICES={shown}")
    try:
        visible = parse_devices(shown) if shown is not None else files
    except UserError as error:
        return Row("GPUs", str(error), BAD, "Unset CUDA_VISIBLE_DEVICES, or correct it; Slurm sets it in each step.")
    indices = [int(token) for token in visible if token.isdigit()] if shown is not None else []
    if files and indices and len(visible) > len(files):
        fix = "Ask Slurm for as many GPUs (slurm.gpu_request), and do not set the variable by hand."
        return Row("GPUs", f"{text}: more than there are", BAD, fix)
    if wanted.on_node and wanted.device == "cuda" and not visible:
        fix = "Ask Slurm for GPUs (slurm.gpu_request, slurm.gpu_type), or set launch.device: cpu."
        return Row("GPUs", f"{text}; launch.device is cuda", BAD, fix)
    return Row(
        "GPUs", text if files or shown is not None else "none", same=str(len(visible)) if wanted.on_node else None
    )


def _driver(machine: Machine, wanted: Wanted, files: list[str], driver: str) -> Row:
    if not driver:
        fix = "Load NVIDIA's kernel module (nvidia-smi says why not), or bind /proc/driver/nvidia into the container."
        return Row("GPU driver", f"{len(files)} device files, but no version in /proc/driver/nvidia", WARN, fix)
    folder = find_package(machine, "torch")
    cuda = torch_version(folder)[1] if folder else ""
    if folder is not None and not cuda:
        verdict = WARN if wanted.device == "cpu" or not wanted.on_node else BAD
        fix = (
            "Install a torch that was built with CUDA (pytorch.org's selector names the index), or launch.device: cpu."
        )
        return Row("GPU driver", f"{driver}, but torch is built without CUDA", verdict, fix, driver)
    least = LEAST_DRIVER.get(cuda.split(".")[0])
    if least is not None and int(driver.split(".")[0]) < least:
        fix = f"Update the driver to {least} or newer, or install a torch that was built for an older CUDA."
        return Row("GPU driver", f"{driver}, too old for torch's CUDA {cuda}", BAD, fix, driver)
    return Row("GPU driver", f"{driver}" + (f", torch has CUDA {cuda}" if cuda else ""), same=driver)


def _asked(machine: Machine) -> list[Row]:
    """nvidia-smi, where there is one; it hangs on a GPU that fell off the bus, which is a finding."""
    if not machine.which("nvidia-smi"):
        return []
    query = "--query-gpu=name,mig.mode.current,ecc.errors.uncorrected.volatile.total"
    answer = machine.run(["nvidia-smi", query, "--format=csv,noheader"])
    fix = "Take the node out of the job (slurm.exclude) and tell the site: the GPU or its driver does not answer."
    if answer.status != 0:
        said = (answer.error or answer.out).strip().splitlines()
        return [Row("nvidia-smi", said[0] if said else f"status {answer.status}", BAD, fix)]
    lines = [[cell.strip() for cell in line.split(",")] for line in answer.out.splitlines() if line.strip()]
    names = [cells[0] for cells in lines]
    kinds = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    broken = [str(index) for index, cells in enumerate(lines) if cells[-1].isdigit() and int(cells[-1])]
    if broken:
        return [Row("nvidia-smi", f"{kinds}; uncorrected memory errors on GPU {', '.join(broken)}", WARN, fix, kinds)]
    return [Row("nvidia-smi", kinds, OK, fix, kinds)]
