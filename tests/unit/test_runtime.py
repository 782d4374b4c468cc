"""Parts of a rank that need no other rank."""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import signal
import socket
import struct
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from trainpkg.errors import UserError
from trainpkg.launch.node import evidence
from trainpkg.runtime import manifest, metrics
from trainpkg.runtime.checkpoints.retention import step_names
from trainpkg.runtime.checkpoints.saving import sentence
from trainpkg.runtime.distributed import RankContext, is_lost_peer
from trainpkg.runtime.rank import read_spec, report_exception
from trainpkg.runtime.report import Reporter
from trainpkg.runtime.seeding import mix, rng_state, seed_all, set_rng_state
from trainpkg.runtime.signals import Cadence, StopRequest
from trainpkg.runtime.state import TrainState


def context(rank: int = 0) -> RankContext:
    return RankContext(rank, rank, 2, 2, 0, 1, "127.0.0.1", 1, "here", torch.device("cpu"), "gloo")


class Listener:
    """The launcher's end of the report socket."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "s"
        self.server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.server.bind(str(self.path))
        self.server.listen()

    def records(self) -> list[dict[str, object]]:
        connection, _ = self.server.accept()
        with connection.makefile() as lines:
            return [json.loads(line) for line in lines]


@pytest.fixture
def listener(tmp_path_factory: pytest.TempPathFactory) -> Listener:
    import tempfile

    return Listener(Path(tempfile.mkdtemp(prefix="report-")))


def test_reports_are_json_lines_and_steps_are_limited(listener: Listener) -> None:
    reporter = Reporter.from_environment({"RANK": "3", "TRAINPKG_REPORT": str(listener.path)})
    reporter.hello()
    for step in range(1, 1001):
        reporter.step(step, 1000)
    reporter.exception(RuntimeError("x\ny"), "trace", victim=True, user_error=False)
    reporter.done("again")
    reporter._connection.close()  # type: ignore[union-attr]
    records = listener.records()
    assert {record["rank"] for record in records} == {3}
    steps = [record["step"] for record in records if record["event"] == "step"]
    assert steps[0] == 1 and steps[-1] == 1000 and len(steps) < 10
    assert records[-2] == {
        "rank": 3, "event": "exception", "type": "RuntimeError", "message": "x\ny", "traceback": "trace", "step": 1000,
        "victim": True, "user_error": False, "collective": False,
    }  # fmt: skip
    counter = evidence.counter_of(records[0])
    assert counter is not None and struct.unpack("q", counter[:8]) == (1000,), "exact whatever was sent of it"
    assert records[-1] == {"rank": 3, "event": "done", "verdict": "again", "step": 1000}


def test_phases_are_told_and_end_as_they_began(listener: Listener, monkeypatch: pytest.MonkeyPatch) -> None:
    reporter = Reporter.from_environment({"RANK": "3", "TRAINPKG_REPORT": str(listener.path)})
    reporter.busy("first step")
    reporter.step(1, 9)
    with reporter.phase("saving"):
        reporter.alive()
        with reporter.phase("publishing"):
            monkeypatch.setattr("trainpkg.runtime.report.ALIVE_INTERVAL_S", 0.0)
            reporter.alive()
    reporter._connection.close()  # type: ignore[union-attr]
    phases = [record["phase"] for record in listener.records() if record["event"] == "busy"]
    assert phases == ["first step", "", "saving", "publishing", "publishing", "saving", ""]


def test_a_launcher_that_does_not_read_costs_lines_not_steps(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainpkg.runtime.report.STEP_INTERVAL_S", 0.0)
    reporter = Reporter.from_environment({"RANK": "0", "TRAINPKG_REPORT": str(listener.path)})
    for step in range(1, 50_000):
        reporter.step(step, 100_000)
    found: list[dict[str, object]] = []
    reader = threading.Thread(target=lambda: found.extend(listener.records()))
    reader.start()
    reporter.done("finished")
    reporter._connection.close()  # type: ignore[union-attr]
    reader.join(10)
    assert found[0]["step"] == 1 and found[-1]["event"] == "done", "and no line is torn"


def test_no_launcher_no_reports(capfd: pytest.CaptureFixture[str]) -> None:
    silent = Reporter.from_environment({"RANK": "1"})
    silent.step(1, 2)
    silent.done("finished")
    gone = Reporter.from_environment({"RANK": "1", "TRAINPKG_REPORT": "/nonexistent/socket"})
    gone.hello()
    assert "TRAINPKG_REPORT = /nonexistent/socket" in capfd.readouterr().err


@pytest.mark.failure("F077")
@pytest.mark.failure("F083")
@pytest.mark.failure("F089")
def test_signals_set_a_flag_in_this_process_alone(tmp_path: Path) -> None:
    saved = {
        number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT)
    }
    try:
        stop = StopRequest()
        stop.install()
        child = os.fork()
        if child == 0:
            os.kill(os.getpid(), signal.SIGUSR2)
            os._exit(int(stop.poll()))
        assert os.waitpid(child, 0)[1] == 0, "a forked loader worker ignores it"
        assert not stop.poll()
        os.kill(os.getpid(), signal.SIGUSR2)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.poll() and stop.reason == "SIGUSR2"
    finally:
        for number, handler in saved.items():
            signal.signal(number, handler)
    by_file = StopRequest()
    by_file.file = tmp_path / "stop"
    assert not by_file.poll()
    by_file.file.touch()
    assert by_file.poll() and "stop" in str(by_file.reason)
    by_file.honoured(7)
    assert not by_file.file.exists()


def test_cadence_bounds_latency_and_cost() -> None:
    for step_s in (1e-4, 3e-3, 0.1, 5.0):
        cadence, meetings = Cadence(), []
        for step in range(1, 5000):
            if cadence.due(step):
                meetings.append(step)
                cadence.met(step, step_s)
        gaps = [b - a for a, b in itertools.pairwise(meetings)]
        assert meetings[0] == 1 and all(gap == 1 or gap * step_s <= 1.01 for gap in gaps)
        assert len(meetings) * 0.9 <= 5000 * step_s + 4


def test_rng_state_goes_through_json() -> None:
    def draw() -> tuple[list[float], float, list[float]]:
        return torch.rand(3).tolist(), random.random(), np.random.randn(3).tolist()

    seed_all(mix("test", 1))
    random.gauss(0, 1)
    np.random.randn()
    state = json.loads(json.dumps(rng_state(torch.device("cpu"))))
    one = draw()
    draw()
    set_rng_state(state, torch.device("cpu"))
    assert draw() == one
    assert mix("a", 1) != mix("a", 2) and mix(1, 23) != mix(12, 3) and 0 <= mix() < 2**63


def test_lost_peers_are_told_from_own_errors() -> None:
    gloo = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1234"
    assert is_lost_peer(RuntimeError(gloo))
    assert is_lost_peer(RuntimeError("Timed out waiting 8000ms for recv operation to complete"))
    assert is_lost_peer(torch.distributed.DistStoreError("wait timeout after 8000ms, keys: /default_pg/0//cpu//0/0"))
    assert is_lost_peer(torch.distributed.DistNetworkError("The client socket has timed out after 8000ms"))
    assert is_lost_peer(torch.distributed.DistBackendError("NCCL error ... ncclRemoteError: remote process exited"))
    assert not is_lost_peer(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not is_lost_peer(ConnectionResetError("Connection reset by peer")), "a download, say"
    assert not is_lost_peer(torch.distributed.DistBackendError("NCCL error: out of memory"))
    assert not is_lost_peer(KeyboardInterrupt())


def test_exit_status_of_exceptions(capsys: pytest.CaptureFixture[str]) -> None:
    silent = Reporter(0, None)
    assert report_exception(silent, UserError("do this")) == 2
    assert capsys.readouterr().err == "trainpkg: error: do this\n"
    assert report_exception(silent, RuntimeError("Connection reset by peer")) == 3
    assert report_exception(silent, ZeroDivisionError("x")) == 1
    assert "ZeroDivisionError: x" in capsys.readouterr().err


def test_spec_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="TRAINPKG_SPEC is unset"):
        read_spec(None)
    (tmp_path / "spec.json").write_text("[]")
    with pytest.raises(UserError, match="holds no JSON object"):
        read_spec(str(tmp_path / "spec.json"))


def test_metrics_are_strict_json_after_a_torn_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"kind": "train", "step": 1}\n{"kind": "tr')
    file = metrics.MetricsFile(context(), path)
    file.write("train", step=2, loss=math.nan, metrics={"a": math.inf, "b": 1.0})
    file.close()
    lines = path.read_text().splitlines()
    assert json.loads(lines[-1]) == {
        "kind": "train", "attempt": 1, "generation": 0, "step": 2, "loss": None, "metrics": {"a": None, "b": 1.0},
        "note": "loss is nan, metrics.a is inf",
    }  # fmt: skip
    assert [record["step"] for record in metrics.read_records(path)] == [1, 2]
    other = metrics.MetricsFile(context(rank=1), tmp_path / "none.jsonl")
    other.write("train", step=1)
    assert not (tmp_path / "none.jsonl").exists()


def test_best_evaluation() -> None:
    state = TrainState(step=1)
    for step, value in enumerate((0.5, math.nan, 0.9, 0.9, 0.7), 1):
        state.step = step
        state.evaluated({"accuracy": value}, "accuracy", "max")
    assert state.best == {"metric": "accuracy", "mode": "max", "value": 0.9, "step": 3}
    assert state.last_eval == {"step": 5, "metrics": {"accuracy": 0.7}}


def test_manifest_finds_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("one")
    (tmp_path / "b").write_text("two")
    manifest.write_manifest(tmp_path, manifest.describe(tmp_path, ["a", "b"]), step=1)
    files = manifest.read_manifest(tmp_path)
    assert set(files) == {"a", "b"} and all(manifest.wrong_checksum(tmp_path, n, f) is None for n, f in files.items())
    (tmp_path / "a").write_text("eno")
    assert manifest.read_manifest(tmp_path) == files
    assert "a is damaged" in str(manifest.wrong_checksum(tmp_path, "a", files["a"]))
    (tmp_path / "b").write_text("twoo")
    with pytest.raises(ValueError, match="b has 4 bytes, its manifest says 3"):
        manifest.read_manifest(tmp_path)
    (tmp_path / "b").unlink()
    with pytest.raises(ValueError, match="b is missing"):
        manifest.read_manifest(tmp_path)


def test_replaced_file_is_old_or_new(tmp_path: Path) -> None:
    manifest.replace_synced(tmp_path / "x", "1")
    manifest.replace_synced(tmp_path / "x", "2")
    assert (tmp_path / "x").read_text() == "2" and [p.name for p in tmp_path.iterdir()] == ["x"]


def test_steps_in_a_directory(tmp_path: Path) -> None:
    for name in ("step-00000010", "step-00000009", "step-123456789", ".tmp-step-00000011-ab", "step-1", "latest"):
        (tmp_path / name).mkdir()
    assert step_names(tmp_path) == ["step-123456789", "step-00000010", "step-00000009"]
    assert step_names(tmp_path / "absent") == []


def test_what_the_file_system_refused(tmp_path: Path) -> None:
    assert "no space left" in sentence(28, "No space left on device", tmp_path)
    assert "Permission denied" in sentence(13, "Permission denied", tmp_path)
