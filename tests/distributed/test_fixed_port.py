"""`launch.port` as one number: what it costs is said, and what can work works."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.launching import Launch
from trainpkg.errors import UserError
from trainpkg.launch.ports import bind_port

failure = pytest.mark.failure
GLOO: dict[str, Any] = {"entry": "tests.distributed.entries:gloo", "preload": ["torch"]}


@failure("F032")
@failure("F036")
def test_a_restart_takes_it_again_and_a_second_job_is_told_of_the_first(tmp_path: Path) -> None:
    with bind_port("127.0.0.1", str(tmp_path)) as free:
        port = free.getsockname()[1]
    keys = {"nodes": 2, "port": str(port), "max_restarts": 1}

    def second(launch: Launch, process: subprocess.Popen[bytes]) -> None:
        launch.wait_for_line("training goes on")
        with pytest.raises(UserError, match=rf"launch.port = {port}: no free port on .* another job on this node"):
            bind_port("127.0.0.1", "of another job", (port, port))

    environment = {"TEST_BAD": "kill:1:5:0", "TEST_STEPS": "200"}
    done = Launch(tmp_path / "run", keys | {"gpus_per_node": 1}, GLOO, environment).run(second)
    assert done.status == 0, done.output
    assert [done.file(f"{generation}/plan.json")["master_port"] for generation in (0, 1)] == [port, port]
    assert f"warning: launch.port = {port} is a single port" in done.output
