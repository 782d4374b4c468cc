"""Random numbers: seeds derived from names, and the generators' state of one rank as plain data."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch


def mix(*parts: int | str) -> int:
    """A seed in [0, 2**63) from any parts: equal parts, equal seed; no two orders collide."""
    digest = hashlib.sha256(repr(parts).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def seed_all(seed: int) -> None:
    """Seed torch (all devices), python and numpy."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def seed_host(seed: int) -> None:
    """Seed the generators of the host alone, as often as once per sample: torch's, python's, numpy's."""
    torch.default_generator.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


@contextlib.contextmanager
def host_generators_kept() -> Iterator[None]:
    """Whatever is drawn inside, the host's generators go on as if nothing had been."""
    before = host_generators()
    try:
        yield
    finally:
        set_host_generators(before)


def host_generators() -> tuple[Any, ...]:
    """Their state, for `set_host_generators` of this process."""
    return torch.get_rng_state(), random.getstate(), np.random.get_state()


def set_host_generators(state: tuple[Any, ...]) -> None:
    torch.set_rng_state(state[0])
    random.setstate(state[1])
    np.random.set_state(state[2])


def rng_state(device: torch.device) -> dict[str, Any]:
    """State of this rank's generators, as JSON can hold it."""
    version, internal, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    state = {
        "torch": _encode(torch.get_rng_state().numpy()),
        "python": [version, list(internal), gauss],
        "numpy": [str(name), _encode(np.asarray(keys)), int(position), int(has_gauss), float(cached)],
    }
    if device.type == "cuda":
        state["cuda"] = _encode(torch.cuda.get_rng_state(device).numpy())
    return state


def set_rng_state(state: dict[str, Any], device: torch.device) -> None:
    """Inverse of `rng_state`; a device's state is skipped where it was saved on another kind of device."""
    torch.set_rng_state(torch.from_numpy(_decode(state["torch"], np.uint8)))
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    name, keys, position, has_gauss, cached = state["numpy"]
    np.random.set_state((name, _decode(keys, np.uint32), position, has_gauss, cached))
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(torch.from_numpy(_decode(state["cuda"], np.uint8)), device)


def _encode(array: np.ndarray[Any, Any]) -> str:
    return base64.b64encode(array.tobytes()).decode()


def _decode(text: str, dtype: type[Any]) -> np.ndarray[Any, Any]:
    return np.frombuffer(base64.b64decode(text), dtype).copy()
