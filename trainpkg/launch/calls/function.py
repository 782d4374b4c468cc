"""What another process can be sent: a function by its module and name, and arguments that can be pickled."""

from __future__ import annotations

import functools
import pickle
import sys
from collections.abc import Callable
from multiprocessing import reduction
from pathlib import Path
from typing import Any

from trainpkg.errors import UserError


def check_function(fn: Callable[..., object]) -> None:
    """Another process finds a function by its module and name. Raises UserError where it could not."""
    inner: Any = fn
    while isinstance(inner, functools.partial):
        inner = inner.func
    if not callable(inner):
        raise UserError(f"fn is {fn!r}, which cannot be called")
    name, module = getattr(inner, "__qualname__", type(inner).__qualname__), getattr(inner, "__module__", "")
    code = getattr(inner, "__code__", None)
    place = f" ({Path(code.co_filename).name}:{code.co_firstlineno})" if code else ""
    fix = "Define it with `def` at the top level of a module; what it takes from around it goes into args"
    if "<lambda>" in name:
        raise UserError(f"fn is a lambda{place}, which another process cannot find by name. {fix}")
    if "<locals>" in name:
        outer, _, own = name.rpartition(".<locals>.")
        raise UserError(f"fn is {own}{place}, defined inside {outer}, where another process cannot find it. {fix}")
    if module == "__main__" and getattr(sys.modules["__main__"], "__file__", None) is None:
        raise UserError(
            f"fn is {name}, defined in an interactive session, which other processes cannot import. Put it into a file"
        )
    try:
        pickle.dumps(fn)
    except Exception as error:  # whatever a __reduce__ raises
        raise UserError(f"fn is {name}{place}, which cannot be sent to another process: {error}. {fix}") from error


def unpicklable(args: tuple[object, ...], error: Exception) -> str:
    for index, value in enumerate(args):
        try:
            pickle.dumps(value)
        except RuntimeError:  # a lock or queue of multiprocessing, which only a starting process may be sent
            continue
        except Exception as reason:  # noqa: BLE001  # whatever a __reduce__ raises
            return f"args[{index}], a {type(value).__qualname__}, cannot be sent to another process: {reason}"
    return f"the arguments cannot be sent to another process: {error}"


class Call:
    """fn and args, pickled at the start of a process and unpickled by it, once it has become a rank."""

    def __init__(self, fn: Callable[..., object], args: tuple[object, ...]) -> None:
        self.content: Any = (fn, args)

    def __getstate__(self) -> bytes:
        return bytes(reduction.ForkingPickler.dumps(self.content))

    def __setstate__(self, state: bytes) -> None:
        self.content = state

    def load(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        content: tuple[Callable[..., object], tuple[object, ...]] = pickle.loads(self.content)
        return content
