"""Records handed on to TensorBoard, MLflow, Weights & Biases or trackio, beside metrics.jsonl, which stays the source.

Nothing is handed on unless `logging.trackers` names one. Each tracker writes files and needs no network; what its own
variables say (MLFLOW_TRACKING_URI, WANDB_MODE, TRACKIO_DIR) wins. A run that goes on goes on in the same tracker run,
whose name in each tracker is kept in trackers.json of the run directory. A tracker that fails ends no training.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from trainpkg.config import Run
from trainpkg.errors import UserError
from trainpkg.runtime.distributed import RankContext
from trainpkg.schema import known_keys

IDS = "trackers.json"
NO_METRICS = ("kind", "step", "attempt", "generation", "note", "metrics")
PROJECT = "trainpkg"


class Tracker(Protocol):
    """What is told of a run. Steps may come twice: a run goes on from its last checkpoint, not from its last record."""

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        """Values after this step, under names such as train/loss and eval/accuracy."""

    def close(self, verdict: str) -> None:
        """The process ends: `finished`, or `again` where the run goes on another time."""


class NoTracker:
    """Nobody is told."""

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        pass

    def close(self, verdict: str) -> None:
        pass


class Told:
    """Where one run is in each tracker: ids, made once and kept in its directory."""

    def __init__(self, run: Run, run_dir: Path) -> None:
        self.run, self.run_dir = run, run_dir
        self._path = run_dir / IDS
        self._ids: dict[str, str] = json.loads(self._path.read_text()) if self._path.exists() else {}

    def id(self, tracker: str, make: Callable[[], str]) -> str:
        """The id of the run in this tracker; made, and written down, by the first attempt."""
        if tracker not in self._ids:
            self._ids[tracker] = make()
            waiting = self._path.with_name(f".{IDS}.tmp")
            waiting.write_text(json.dumps(self._ids, indent=1) + "\n")
            waiting.replace(self._path)
        return self._ids[tracker]

    @property
    def config(self) -> dict[str, Any]:
        """The keys that make the run what it is; the others may change from attempt to attempt."""
        keys = known_keys(Run)
        return {key: value for key, value in self.run.flat().items() if key in keys and keys[key].identity}


class TensorBoard:
    """Event files in RUN/tensorboard. Read them with `tensorboard --logdir results/runs`."""

    def __init__(self, told: Told) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._open: Callable[..., Any] = lambda step: SummaryWriter(str(told.run_dir / "tensorboard"), purge_step=step)
        self._writer: Any = None

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        if self._writer is None:
            self._writer = self._open(step)  # what an earlier attempt wrote from this step on is not shown
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self, verdict: str) -> None:
        if self._writer is not None:
            self._writer.close()


class MLflow:
    """A file store beside the runs, results/mlruns: one experiment per recipe. A file per metric and per parameter."""

    def __init__(self, told: Told) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        uri = os.environ.get("MLFLOW_TRACKING_URI") or (told.run_dir.parents[1] / "mlruns").resolve().as_uri()
        if uri.startswith("file:"):
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow 3 refuses to open one without
        self._client = MlflowClient(tracking_uri=uri)
        self._metric = Metric
        self._id = told.id("mlflow", lambda: self._create(told, Param))
        self._client.update_run(self._id, status="RUNNING")

    def _create(self, told: Told, param: Any) -> str:
        created = self._client.create_run(self._experiment(told.run.recipe), run_name=told.run.run)
        params = [param(key, str(value)) for key, value in told.config.items()]
        self._client.log_batch(created.info.run_id, params=params)
        return str(created.info.run_id)

    def _experiment(self, name: str) -> str:
        from mlflow.exceptions import MlflowException

        found = self._client.get_experiment_by_name(name)
        if found is None:
            with contextlib.suppress(MlflowException):  # another run of the recipe made it meanwhile
                return str(self._client.create_experiment(name))
            found = self._client.get_experiment_by_name(name)
        assert found is not None
        return str(found.experiment_id)

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        now_ms = int(1000 * time.time())
        told = [self._metric(name, value, now_ms, step) for name, value in values.items()]
        self._client.log_batch(self._id, metrics=told)

    def close(self, verdict: str) -> None:
        if verdict == "finished":
            self._client.set_terminated(self._id)


class WandB:
    """Offline, in RUN/wandb, a folder per attempt. Upload with `wandb sync results/runs/*/wandb/offline-run-*`."""

    def __init__(self, told: Told) -> None:
        import wandb

        self._run = wandb.init(
            id=told.id("wandb", lambda: secrets.token_hex(8)),
            resume="allow",
            mode=None if "WANDB_MODE" in os.environ else "offline",
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            group=told.run.recipe,
            name=told.run.run,
            dir=os.environ.get("WANDB_DIR", str(told.run_dir)),
            config=told.config,
            settings=wandb.Settings(silent=True, console="off"),
        )
        self._end = wandb.teardown
        # Its own step only grows, and would drop what a run that goes on says of steps before.
        self._run.define_metric("*", step_metric="step")

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({**values, "step": step})

    def close(self, verdict: str) -> None:
        self._run.finish()
        self._end()  # waits for wandb's own process, which is still writing; ranks leave nothing behind


class Trackio:
    """RUN/trackio/PROJECT.db. One for all runs, for a file system that SQLite is safe on, is TRACKIO_DIR=..."""

    def __init__(self, told: Told) -> None:
        os.environ.setdefault("TRACKIO_DIR", str(told.run_dir / "trackio"))
        import trackio

        with open(os.devnull, "w") as nobody, contextlib.redirect_stdout(nobody):  # noqa: PTH123
            self._run = trackio.init(
                project=os.environ.get("TRACKIO_PROJECT", PROJECT),
                name=told.id("trackio", lambda: f"{told.run.run}-{secrets.token_hex(4)}"),
                group=told.run.recipe,
                resume="allow",
                config=told.config,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self, verdict: str) -> None:
        with open(os.devnull, "w") as nobody, contextlib.redirect_stdout(nobody):  # noqa: PTH123
            self._run.finish()


# name -> the tracker, and the package that it needs
TRACKERS: dict[str, tuple[Callable[[Told], Tracker], str]] = {
    "tensorboard": (TensorBoard, "tensorboard"),
    "mlflow": (MLflow, "mlflow"),
    "wandb": (WandB, "wandb"),
    "trackio": (Trackio, "trackio"),
}


class Several:
    """All that were asked for. One that fails is told once and then left alone: training matters more."""

    def __init__(self, trackers: Mapping[str, Tracker], warn: Callable[[str], None]) -> None:
        self._trackers, self._warn = dict(trackers), warn

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self._each(lambda tracker: tracker.metrics(step, values))

    def close(self, verdict: str) -> None:
        self._each(lambda tracker: tracker.close(verdict))

    def _each(self, tell: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                tell(tracker)
            except Exception as error:  # noqa: BLE001  whatever somebody else's package raises
                del self._trackers[name]
                self._warn(f"tracker {name} is told no more: {type(error).__name__}: {error}")


def build(ctx: RankContext, run: Run, run_dir: Path) -> Tracker:
    """The trackers of `logging.trackers`, on the rank that writes records. UserError where a package is missing."""
    names: Sequence[str] = run.logging.trackers if ctx.is_main else ()
    for name in names:
        package = TRACKERS[name][1]
        if importlib.util.find_spec(package) is None:  # not imported: trackio reads its variables when it is
            raise UserError(
                f"logging.trackers names {name!r}, but there is no package {package} here: pip install "
                f"'trainpkg[{name}]'"
            )
    if not names:
        return NoTracker()
    told, opened = Told(run, run_dir), {}
    for name in names:
        try:
            opened[name] = TRACKERS[name][0](told)
        except Exception as error:  # noqa: BLE001  as above
            ctx.warn(f"tracker {name} could not be opened and is told nothing: {type(error).__name__}: {error}")
    return Several(opened, ctx.warn)


def numbers(record: Mapping[str, Any]) -> dict[str, float]:
    """The numbers in a record of metrics.jsonl: `train/loss`, `eval/accuracy`, `train/layers/blocks.0/grad_norm`."""
    own = {name: value for name, value in record.items() if name not in NO_METRICS}
    return dict(_flat({**own, **(record.get("metrics") or {})}, f"{record['kind']}/"))


def _flat(tree: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, float]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield f"{prefix}{name}", float(value)
