"""What the user's own model, data and task must keep, tried before a job is submitted: names, arguments, one batch.

The batch goes through the model on the meta device: shapes and types without memory or arithmetic. What cannot be known
here (data that lie on the nodes alone, values that decide about shapes) the smoke test finds out on its nodes.

`python -m trainpkg.contract` reads runs as JSON from its standard input and writes a JSON list of sentences: torch is
imported there, not by who asks.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from trainpkg.config import Run
from trainpkg.config.names import is_own
from trainpkg.errors import UserError
from trainpkg.launch.head.own import absent_module, absent_script

if TYPE_CHECKING:
    import torch

    from trainpkg import data, tasks
    from trainpkg.runtime.parallel import Single

T = TypeVar("T")
NO_DATA: Any = None
TIMEOUT_S = 120.0
BEGINS_WITH = "contract: "  # of the line with the result, after whatever the user's modules print


def problems(runs: Iterable[Run]) -> list[str]:
    """Sentences on all that runs with programs or parts of the user's own do not keep; others cost nothing.

    Runs of another Python, container or environment are left to their smoke test.
    """
    runs = list(runs)
    absent = [f"run {run.run!r}: {why}" for run in runs if (why := _absent(run)) and not _is_input(run)]
    chosen: dict[str, Run] = {}
    for run in runs:
        if has_own(run) and not _elsewhere(run):
            chosen.setdefault(_kind(run), run)
    return absent + (_asked(list(chosen.values())) if chosen else [])


def _asked(runs: list[Run]) -> list[str]:
    """What a process of its own says of them."""
    text = json.dumps([run.tree() for run in runs])
    try:
        done = subprocess.run(
            [sys.executable, "-m", __name__], input=text, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        print(f"own model, data and task: no answer within {TIMEOUT_S:.0f} s; the smoke test will try", file=sys.stderr)
        return []
    lines = [line for line in done.stdout.splitlines() if line.startswith(BEGINS_WITH)]
    if not lines:
        names = ", ".join(sorted({name for run in runs for name in _names(run)}))
        return [f"trying {names} ended with status {done.returncode}: {done.stderr.strip()[-2000:]}"]
    told: list[str] = json.loads(lines[-1].removeprefix(BEGINS_WITH))
    return told


def _elsewhere(run: Run) -> bool:
    """Whether nodes may import what this Python does not."""
    return bool(run.launch.python or run.launch.wrapper or run.launch.prologue)


def _absent(run: Run) -> str:
    # A launch.command may enter a container, too.
    return absent_script(run) or ("" if _elsewhere(run) or run.launch.command else absent_module(run))


def _is_input(run: Run) -> bool:
    """Whether another workflow's rules may make the script, or the module's file."""
    if run.entry is None:
        return False
    module = (run.entry.module or "").replace(".", "/")
    made = {Path(run.entry.script or f"{module}.py"), Path(module, "__main__.py")}
    return not made.isdisjoint(map(Path, run.inputs))


def has_own(run: Run) -> bool:
    """Whether a part of the run is the user's own code."""
    return not run.own_program and any(map(is_own, _names(run)))


def _names(run: Run) -> list[str]:
    transform = getattr(run.data, "transform", None)
    return [name for name in (run.model.name, run.data.name, run.task, transform) if name]


def _kind(run: Run) -> str:
    """Runs of one kind differ in values only; one of them is tried."""
    kwargs = [run.task_kwargs, getattr(run.model, "kwargs", None), getattr(run.data, "kwargs", None)]
    return repr([_names(run), *(sorted(given or {}) for given in kwargs)])


def problems_of(run: Run) -> list[str]:
    """Sentences on one run, each with its name: of each part by itself, or of all of them together."""
    from trainpkg import data, tasks
    from trainpkg.runtime.sequence import Pieces

    found: list[str] = []
    model = _tried(lambda: _model(run), found)
    splits = _tried(lambda: _data(run), found)
    unseen = data.Splits(NO_DATA, NO_DATA, "", {}, num_classes=2)
    task = _tried(lambda: tasks.build(run, Pieces(), splits or unseen), found if splits or is_own(run.task) else [])
    if model is not None and splits is not None and task is not None:
        _tried(lambda: judge_on_meta(task, model, splits), found)
    return [f"run {run.run!r}: {problem}" for problem in found]


def _tried(make: Callable[[], T], found: list[str]) -> T | None:
    from trainpkg import named

    try:
        return make()
    except UserError as error:
        found.append(str(error))
    except Exception as error:  # noqa: BLE001  the user's own code, or a mistake here: other runs are told of as well
        found.append(named.told(error))
    return None


def _model(run: Run) -> torch.nn.Module:
    import torch

    from trainpkg import models

    try:
        return models.build(run.model, torch.device("meta"))
    except (NotImplementedError, UserError):
        return models.build(run.model)  # its constructor looks at values


def _data(run: Run) -> data.Splits | None:
    """None where the files are not there, or not yet."""
    import torch

    from trainpkg import data, named

    if getattr(run.data, "transform", None):
        named.load("data.transform", run.data.transform)  # type: ignore[union-attr, arg-type]
    try:
        return data.build(run, torch.device("cpu"))
    except (OSError, data.AbsentError):
        return None
    except UserError as error:
        if isinstance(error.__cause__, OSError):  # of the user's own
            return None
        raise


def judge_on_meta(task: tasks.Task, model: torch.nn.Module, splits: data.Splits) -> None:
    """UserError where a batch does not go through model and task."""
    import torch
    from torch.utils._pytree import tree_map_only

    from trainpkg import named

    try:
        batch = splits.train.batch(torch.arange(min(2, splits.train.num_samples or 2)))
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"two of the training samples make no batch: {named.told(error)}") from error
    batch = tree_map_only(torch.Tensor, lambda part: part.to("meta"), batch)
    try:
        task.loss(model.to("meta"), batch)
    except UserError:
        raise
    except NotImplementedError:
        return  # values decide about shapes
    except Exception as error:
        if "meta" in str(error).lower():
            return
        raise UserError(
            f"a batch of the training samples, {shapes(batch)}, does not go through model and task (on the meta "
            f"device): {named.told(error)}. Give the model the sizes of the data (model.kwargs), or let the data make "
            "samples of the model's (data.kwargs, collate)"
        ) from error


def judge(task: tasks.Task, strategy: Single, splits: data.Splits, device: torch.device) -> None:
    """The task's word on two held-out samples of which one counts. UserError where it is not as agreed. Collective."""
    import torch

    from trainpkg.data.loading import loaded

    last = splits.validation.num_samples - 1
    request = (torch.tensor([0, min(1, last)]), None)
    batch = next(loaded(splits.validation, [request], device, min(splits.workers, 1)))
    strategy.module.eval()
    with torch.no_grad(), strategy.autocast():
        sums, nothing = (
            task.sums(strategy.module, batch, torch.tensor(is_real, device=device))
            for is_real in ([True, False], [False, False])
        )
    strategy.module.train()
    if sums[-1] != 1:
        raise UserError(
            f"task.sums counts {sums[-1].item():g} samples where is_real is set for 1 of 2: the last of the sums is "
            "the number of samples that count, and no other may have a part in the sums"
        )
    if nothing.ne(0).any():
        raise UserError(
            f"task.sums gives {nothing.tolist()} where is_real is set for 0 of 2 samples, as in padded passes of an "
            "evaluation: wanted is 0 in each; leave out what is not real, and divide by no count: sums add up"
        )
    task.metrics(sums.double().cpu(), splits.facts)


def shapes(batch: Any) -> str:
    """Shapes and types of a batch, for a sentence."""
    import torch
    from torch.utils._pytree import tree_map

    from trainpkg.tasks.own import shown

    return str(tree_map(lambda part: shown(part) if isinstance(part, torch.Tensor) else part, batch)).replace("'", "")


def main() -> None:
    runs = [Run.model_validate(tree) for tree in json.load(sys.stdin)]
    told = [text for run in runs for text in problems_of(run)]
    print(f"\n{BEGINS_WITH}{json.dumps(list(dict.fromkeys(told)))}")


if __name__ == "__main__":
    main()
