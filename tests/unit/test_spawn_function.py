"""What `trainpkg.launch.spawn` refuses before anything starts, and what importing it costs."""

from __future__ import annotations

import functools
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trainpkg import launch
from trainpkg.errors import UserError
from trainpkg.launch.calls.failure import Ended
from trainpkg.launch.calls.function import check_function, unpicklable

ROOT = Path(__file__).resolve().parents[2]


def plain(local_rank: int) -> None:
    """At the top level, as it must be."""


def nested() -> Callable[..., Any]:
    def inner(local_rank: int) -> None:
        """In here."""

    return inner


class Unsendable:
    def __call__(self, local_rank: int) -> None:
        """Never."""

    def __reduce__(self) -> Any:
        raise TypeError("it holds a socket")


@pytest.mark.parametrize(
    ("fn", "named"),
    [
        (lambda rank: None, ["fn is a lambda (test_spawn_function.py:", "Define it with `def` at the top level"]),
        (nested(), ["fn is inner (test_spawn_function.py:", "defined inside nested", "goes into args"]),
        (functools.partial(nested(), 1), ["fn is inner", "defined inside nested"]),
        (Unsendable(), ["Unsendable", "it holds a socket"]),
        (3, ["fn is 3, which cannot be called"]),
    ],
)
def test_functions_that_no_other_process_finds(fn: Any, named: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        launch.spawn(fn, nprocs=2)
    assert all(part in str(caught.value) for part in named), str(caught.value)


def test_functions_that_it_does() -> None:
    check_function(plain)
    check_function(functools.partial(plain, 1))
    assert "args[1], a lock, cannot be sent" in unpicklable((1, threading.Lock()), TypeError())


def test_an_interactive_session_and_a_missing_guard_are_told() -> None:
    code = "import trainpkg.launch\ndef f(rank): pass\ntrainpkg.launch.spawn(f)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert "fn is f, defined in an interactive session" in done.stderr


@pytest.mark.failure("F096")
def test_the_cause_is_told_apart_from_its_victims() -> None:
    lost = {"type": "RuntimeError", "text": "Connection reset by peer", "traceback": "...", "time_s": 1.0}
    own = {"type": "ValueError", "text": "the loss is nan", "traceback": "...", "time_s": 2.0}
    victim, cause = Ended(0, 10, 1, None, lost), Ended(2, 12, 1, None, own)
    killed, silent = Ended(1, 11, None, 9, {}), Ended(3, 13, 7, None, {})
    assert min([victim, cause], key=lambda one: one.likelihood) is cause
    assert min([victim, cause, silent, killed], key=lambda one: one.likelihood) is killed
    assert "rank 1 (process 11) was killed by SIGKILL" in str(killed.failure())
    assert "rank 2 (process 12) raised ValueError: the loss is nan" in str(cause.failure())
    assert "rank 3 (process 13) ended with status 7" in str(silent.failure())


def test_importing_it_is_cheap() -> None:
    code = (
        "import sys, trainpkg.launch; light = set(sys.modules); trainpkg.launch.spawn; "
        "print('multiprocessing' in light, 'asyncio' in sys.modules, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.split() == ["False", "False", "False"]
