"""The `lab` fixture: one Slurm of three nodes for all tests of this directory, as new before each of them.

Where the machine cannot have one, the tests are skipped with a line that says why (a failure in CI: tests/conftest.py).
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.cluster.lab import Lab
from tests.cluster.machine import missing

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before `-m` looks at the markers
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    lack = missing()
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.cluster)
            if lack:
                item.add_marker(pytest.mark.skip(reason=lack))


@pytest.fixture(scope="session")
def session_lab() -> Iterator[Lab]:
    with Lab(num_nodes=3, gpus_per_node=4) as lab:
        yield lab


@pytest.fixture
def lab(session_lab: Lab) -> Iterator[Lab]:
    yield session_lab
    session_lab.mend()


@pytest.fixture
def shared_dir(lab: Lab, request: pytest.FixtureRequest) -> Path:
    """An empty directory that all nodes see (`tmp_path` lies in /tmp, of which each node has its own)."""
    path = lab.shared_dir / re.sub(r"\W+", "-", request.node.name)
    path.mkdir()
    return path


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    lab = getattr(item, "funcargs", {}).get("lab")
    if report.failed and lab is not None and lab.realms:
        report.sections.append(("logs of the Slurm daemons", lab.logs()))
    return report
