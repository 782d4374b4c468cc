"""Imports every module of the package, and asks for what each extra is for: `python -m tests.every_module [BLOCKED..]`.

BLOCKED are names of modules that this process shall not find, as if they were not installed. Prints JSON: `imported`,
how many modules; `failed`, module -> error; `said`, extra -> what a user reads who asks for it.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any


class Without:
    """A finder of modules that does not find some, nor what is below them."""

    def __init__(self, finder: Any, names: Sequence[str]) -> None:
        self.finder, self.names = finder, frozenset(names)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        return None if name.partition(".")[0] in self.names else self.finder.find_spec(name, path, target)


def tracker(name: str) -> None:
    from trainpkg.config.training import Logging
    from trainpkg.runtime import trackers

    ctx: Any = SimpleNamespace(is_main=True, warn=print)
    run: Any = SimpleNamespace(logging=Logging(trackers=(name,)))
    trackers.build(ctx, run, Path())


def mpi(name: str) -> None:
    from trainpkg.launch.start.mpi import library_version

    library_version(initialise=False)


def torchvision(name: str) -> None:
    from trainpkg.data.pictures import Pictures

    config: Any = SimpleNamespace(transform="torchvision.transforms.v2:RandAugment", transform_kwargs={})
    Pictures(config)


def datasets(name: str) -> None:
    from trainpkg.data import require

    require("datasets", "data.name = 'hf_dataset'", "datasets")


def tokenizers(name: str) -> None:
    from trainpkg.tokenize import of_file

    of_file(Path("tokenizer.json"), None)


# extra -> its module, and what needs it
ASK: dict[str, tuple[str, Callable[[str], None]]] = {
    **{name: (name, tracker) for name in ("tensorboard", "mlflow", "wandb", "trackio")},
    **{one.__name__: (one.__name__, one) for one in (torchvision, datasets, tokenizers)},
    "mpi": ("mpi4py", mpi),
}


def main(blocked: Sequence[str]) -> dict[str, Any]:
    sys.meta_path[:] = [Without(finder, blocked) for finder in sys.meta_path]
    import trainpkg

    failed, said, count = {}, {}, 0
    for module in pkgutil.walk_packages(trainpkg.__path__, "trainpkg."):
        try:
            importlib.import_module(module.name)
            count += 1
        except BaseException as error:  # noqa: BLE001  whatever it is: it is told
            failed[module.name] = f"{type(error).__name__}: {error}"
    for extra, (_, ask) in ASK.items():
        try:
            ask(extra)
        except (Exception, SystemExit) as error:  # noqa: BLE001
            said[extra] = f"{type(error).__name__}: {error}"
    return {"imported": count, "failed": failed, "said": said}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1:])))
