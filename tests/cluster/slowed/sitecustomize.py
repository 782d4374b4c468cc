"""Slows a training down, so that a kill at a random instant meets each of its phases, and has rank 0 say where it is.

Python imports a module of this name by itself where its folder is in PYTHONPATH. Seconds: CHAOS_STEP_S before each
step, CHAOS_PASS_S before each forward pass of an evaluation, CHAOS_SAVE_S at three points of each save (with a rank's
files written, before the rename that publishes them, before `latest` moves) and before the result is written at the
end. What is computed stays the same.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any


def say(text: str) -> None:
    if os.environ.get("RANK") == "0":
        print(f"chaos: {text}", file=sys.stderr, flush=True)  # stdout belongs to the program: a scribe answers there


def wait(name: str) -> None:
    time.sleep(float(os.environ.get(name, "0")))


def slow_steps(module: ModuleType) -> None:
    begin = module.Update.begin

    def wrapped(self: Any, step: int) -> None:
        say(f"step {step + 1}")
        wait("CHAOS_STEP_S")
        begin(self, step)

    module.Update.begin = wrapped  # type: ignore[attr-defined]


def slow_evaluations(module: ModuleType) -> None:
    loaded = module.loaded

    def wrapped(*arguments: Any) -> Any:
        say("evaluation")
        try:
            for one in loaded(*arguments):
                wait("CHAOS_PASS_S")
                yield one
        finally:
            say("evaluated")

    module.loaded = wrapped  # type: ignore[attr-defined]


def slow_saves(module: ModuleType) -> None:
    describe, write_manifest, replace = module.describe, module.write_manifest, module.replace_synced

    def described(*arguments: Any, **keywords: Any) -> Any:
        wait("CHAOS_SAVE_S")
        return describe(*arguments, **keywords)

    def written(*arguments: Any, **keywords: Any) -> None:
        write_manifest(*arguments, **keywords)
        wait("CHAOS_SAVE_S")

    def replaced(path: Path, text: str) -> None:
        if path.name in ("latest", "finished.json", "train.json"):
            wait("CHAOS_SAVE_S")
        replace(path, text)
        say(f"{path.name} {text.strip()}" if path.name == "latest" else path.name)

    module.describe, module.write_manifest, module.replace_synced = described, written, replaced  # type: ignore[attr-defined]


CHANGES: dict[str, Callable[[ModuleType], None]] = {
    "trainpkg.runtime.update": slow_steps,
    "trainpkg.evaluate": slow_evaluations,
    "trainpkg.runtime.manifest": slow_saves,
}


class Finder(importlib.abc.MetaPathFinder):
    """Changes each of these modules once it is loaded."""

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        change = CHANGES.get(name)
        found = importlib.machinery.PathFinder.find_spec(name, path) if change else None
        if change is None or found is None or found.loader is None:
            return None
        load = found.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            load(module)
            change(module)

        found.loader.exec_module = exec_module  # type: ignore[method-assign]
        return found


sys.meta_path.insert(0, Finder())
