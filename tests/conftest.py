"""No skip goes unseen in CI: TRAINPKG_REQUIRE_CLUSTER=1 says that this machine has all that the tests need."""

from __future__ import annotations

import os
from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and os.environ.get("TRAINPKG_REQUIRE_CLUSTER") == "1":
        report.outcome = "failed"
        report.longrepr = f"skipped, and TRAINPKG_REQUIRE_CLUSTER=1 allows none: {report.longrepr}"
    return report
