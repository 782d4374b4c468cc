"""A launch of test entries in a process of its own: `python -m tests.distributed.launched OUT JSON`.

JSON: {"launch": config keys, "spec": fields of the spec, "entry": a program of one's own, ...}; TEST_* variables steer
the entries.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from trainpkg.config import Run
from trainpkg.errors import UserError
from trainpkg.launch.head.job import launch


def make_run(
    out: Path, config: dict[str, dict[str, Any]] | None = None, entry: dict[str, Any] | None = None, **launch_keys: Any
) -> Run:
    """A small valid run whose launch section has these keys.

    `config` has keys of other sections, `entry` is a program of the user's own.
    """
    keys = {"device": "cpu", "where": "local", "max_restarts": 0, "stop_grace_s": 1.0} | launch_keys
    tree: dict[str, Any] = {"run": out.parent.name, "recipe": "test", "launch": keys}
    if entry is not None:
        tree["entry"] = entry
    elif "{entry}" in keys.get("command", "{entry}"):
        tree |= {"task": "images", "model": {"name": "conv"}, "data": {"name": "digits"}}
        tree["train"] = {"max_steps": 10, "global_batch": 24}
    for section, more in (config or {}).items():
        tree[section] = dict(tree.get(section, {})) | more
    return Run.model_validate(tree)


if __name__ == "__main__":
    out, given = Path(sys.argv[1]), json.loads(sys.argv[2])
    out.parent.mkdir(parents=True, exist_ok=True)
    seed = given.get("seed", 0)
    run = make_run(out, given.get("config"), given.get("entry"), **given.get("launch", {}))
    run = run.model_copy(update={"seed": seed})
    try:
        options = {name: given[name] for name in ("retry", "requeue") if name in given}
        status = launch(run, given.get("stage", "train"), out, **options, **given.get("spec", {}))
    except UserError as error:
        print(f"error: {error}")
        status = error.status
    sys.exit(status)
