"""What a run cost in money, and how much of its devices' peak it used (MFU).

The price and an unknown device's peak are the user's to give (slurm.price_per_gpu_hour, launch.peak_tflops); without
them, and for models whose work per sample is not a matter of a formula, the columns stay empty.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from trainpkg.tables.files.records import number

# Side of the images of the built-in data sets, in pixels: a vision transformer's number of tokens follows from it.
IMAGE_SIDE = 8
# Dense peaks in TFLOP/s from NVIDIA's data sheets, by a part of the name that torch gives the device: float32 without
# tensor cores (torch's default), bfloat16, float16. None where a device has no hardware for it. Whole words, since
# an L40 is no L4 and an A10G no A10; the first match counts.
PEAKS: tuple[tuple[str, float, float | None, float], ...] = (
    ("B200", 75.0, 2250.0, 2250.0),
    ("H100 PCIe", 51.0, 756.0, 756.0),
    ("H100 NVL", 60.0, 835.0, 835.0),
    ("H100|H200|GH200", 67.0, 989.4, 989.4),
    ("A100", 19.5, 312.0, 312.0),
    ("A30", 10.3, 165.0, 165.0),
    ("A40", 37.4, 149.7, 149.7),
    ("A6000", 38.7, 154.8, 154.8),
    ("A10", 31.2, 125.0, 125.0),
    ("L40S", 91.6, 362.0, 362.0),
    ("L4", 30.3, 121.0, 121.0),
    ("RTX 4090", 82.6, 165.2, 165.2),
    ("RTX 3090", 35.6, 71.2, 71.2),
    ("V100-SXM2|V100-SXM3", 15.7, None, 125.0),
    ("V100", 14.0, None, 112.0),
    ("T4", 8.1, None, 65.0),
)


def cost(gpu_hours: float | None, config: Mapping[str, Any]) -> float | None:
    """GPU-hours times slurm.price_per_gpu_hour; None where either is unknown."""
    price = number(config.get("slurm.price_per_gpu_hour"))
    return None if gpu_hours is None or math.isnan(price) else gpu_hours * price


def mfu_percent(row: Mapping[str, Any], config: Mapping[str, Any]) -> float | None:
    """Model FLOPs per second over the peak of all ranks' devices.

    The model's are those of Chowdhery et al., PaLM (2022), appendix B: 6 per parameter and 12 depth x width x context
    for attention, per token; what is computed again for activation checkpointing does not count.
    """
    peak = peak_tflops(row.get("gpu"), config)
    per_second = _flops_per_second(row, config)
    if peak is None or per_second is None or not row.get("world_size"):
        return None
    return float(100 * per_second / (peak * 1e12 * row["world_size"]))


def peak_tflops(device: str | None, config: Mapping[str, Any]) -> float | None:
    """Peak of one rank's device in the precision of the run: what the user says, else by the device's name."""
    given = number(config.get("launch.peak_tflops"))
    if given > 0:
        return given
    found = next((peaks for peaks in PEAKS if device is not None and re.search(rf"\b({peaks[0]})\b", device)), None)
    if found is None:
        return None
    _, fp32, bf16, fp16 = found
    return {"fp32": fp32, "bf16": bf16, "fp16": fp16}.get(str(config.get("train.precision")))


def _flops_per_second(row: Mapping[str, Any], config: Mapping[str, Any]) -> float | None:
    name, parameters = config.get("model.name"), row.get("num_parameters")
    dim, depth = number(config.get("model.dim")), number(config.get("model.depth"))
    tokens, rate = math.nan, math.nan
    if name == "gpt":
        tokens, rate = number(config.get("model.context")), number(row.get("tokens_per_second"))
    elif name == "vit" and number(config.get("model.patch")) > 0:
        tokens = (number(config.get("model.side", IMAGE_SIDE)) // number(config.get("model.patch"))) ** 2
        rate = number(row.get("samples_per_second")) * tokens
    flops = (6 * parameters + 12 * depth * dim * tokens) * rate if parameters else math.nan
    return None if math.isnan(flops) else flops
