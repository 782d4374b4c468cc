"""The user's own code by its name `package.module:name`: found, its arguments compared with its signature, called.

What goes wrong is told by the key that names it. What its result must be able to do belongs to whoever uses it.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import hashlib
import importlib
import inspect
import os
import pkgutil
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from trainpkg.errors import UserError

Maker = Callable[..., Any]
KWARGS = {
    "model": "model.kwargs", "data": "data.kwargs", "task": "task_kwargs", "data.transform": "data.transform_kwargs",
}  # fmt: skip


def load(key: str, name: str) -> Maker:
    """The callable that `key: package.module:name` names.

    The folder that the run is started in counts, then what is installed. UserError where it cannot be imported, is not
    there or cannot be called.
    """
    module_name, _, path = name.partition(":")
    found: Any = _module(key, name, module_name)
    for part in path.split("."):
        if not hasattr(found, part):
            names = {name.casefold(): name for name in dir(found)}
            near = difflib.get_close_matches(part.casefold(), names, n=1)
            raise UserError(
                f"{key} = {name!r}: {module_name} ({getattr(sys.modules[module_name], '__file__', None)}) has no "
                f"{path!r}" + (f"; nearest name: {names[near[0]]!r}" if near else "")
            )
        found = getattr(found, part)
    if not callable(found):
        raise UserError(f"{key} = {name!r}: it is no class or function but {type(found).__name__}")
    maker: Maker = found
    return maker


def _module(key: str, name: str, module_name: str) -> ModuleType:
    here = os.getcwd()  # noqa: PTH109  as sys.path has it; the console script and PYTHONSAFEPATH leave it out
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        missing = error.name or module_name
        if module_name == missing or module_name.startswith(f"{missing}."):
            raise UserError(
                f"{key} = {name!r}: there is no module {missing!r}, neither in {here}, where the run is started, nor "
                f"among what {sys.executable} has installed{_beside(missing)}"
            ) from error
        raise UserError(f"{key} = {name!r}: {module_name} imports {missing!r}, which is not installed") from error
    except Exception as error:  # whatever the user's module does at its import
        raise UserError(f"{key} = {name!r}: {module_name} cannot be imported: {told(error)}") from error


def _beside(missing: str) -> str:
    """The nearest of the modules in the package that this one should be in."""
    package, _, word = missing.rpartition(".")
    folders = getattr(sys.modules.get(package), "__path__", ())
    near = difflib.get_close_matches(word, [module.name for module in pkgutil.iter_modules(folders)], n=1)
    return f"; nearest module: {package}.{near[0]}" if near else ""


def call(section: str, name: str, maker: Maker, kwargs: Mapping[str, Any]) -> Any:
    """What `maker(**kwargs)` gives. UserError where the arguments do not fit, and for what it raises itself.

    `section`: where name and arguments come from, one of KWARGS.
    """
    given = KWARGS[section]
    require_fit(given, name, maker, kwargs)
    try:
        return maker(**kwargs)
    except UserError:
        raise
    except Exception as error:  # the user's own code
        raise UserError(f"{name}(**{given}), {dict(kwargs)}, raised {told(error)}") from error


def require_fit(given: str, name: str, maker: Maker, kwargs: Mapping[str, Any]) -> None:
    """UserError where the signature, if there is one to be known, does not take these arguments."""
    try:
        signature = inspect.signature(maker)
    except (ValueError, TypeError):  # written in C
        return
    try:
        signature.bind(**kwargs)
    except TypeError as error:
        unknown = [key for key in kwargs if key not in signature.parameters]
        near = difflib.get_close_matches(unknown[0], signature.parameters, n=1) if unknown else []
        hint = f"; nearest argument: {near[0]!r}" if near else ""
        raise UserError(f"{given} = {dict(kwargs)}: {name}{signature}: {error}{hint}") from error


def digest(names: Iterable[str]) -> str:
    """16 hex digits over the files that these names, where they are the user's own, come from.

    Of each the module that it names, and the one that it was written in, where that hands it on.
    """
    found = hashlib.sha256()
    for name in sorted({name for name in names if ":" in name}):
        found.update(name.encode())
        for path in sorted(_files(name)):
            found.update(Path(path).read_bytes())
    return found.hexdigest()[:16]


def _files(name: str) -> set[str]:
    module, _, path = name.partition(":")
    files = {getattr(sys.modules.get(module), "__file__", None)}
    with contextlib.suppress(TypeError, OSError, AttributeError, KeyError):  # written in C, say
        files.add(inspect.getfile(functools.reduce(getattr, path.split("."), sys.modules[module])))
    return {file for file in files if file}


def told(error: BaseException) -> str:
    """An exception with where it comes from, in one line: the last place that is not in a library."""
    every = list(traceback.extract_tb(error.__traceback__))
    frames = [frame for frame in every if "site-packages" not in frame.filename] or every
    where = f" ({frames[-1].filename}:{frames[-1].lineno})" if frames else ""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}{where}"
