"""docs/failures.md: which test keeps which publicly reported failure away. `python -m tests.failures --write` makes it.

The failures stand in failures.tsv, the tests say by their mark (`@pytest.mark.failure("F043")`) which of them they are
for; tests are collected, not run. The column `only half` says what cannot be tested here, and which half is.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import io
import sys
from collections import defaultdict
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
PAGE = TESTS.parent / "docs" / "failures.md"
NO_TEST = "**none**"
REPAIR = "python -m tests.failures --write"


def reports() -> list[dict[str, str]]:
    """The rows of failures.tsv."""
    with (TESTS / "failures.tsv").open(newline="") as file:
        return [{key: cell or "" for key, cell in row.items()} for row in csv.DictReader(file, delimiter="\t")]


class Collector:
    """Takes the marks of all tests that pytest finds, also of single parameters; nothing is run."""

    def __init__(self) -> None:
        self.found: dict[str, list[tuple[str, str]]] = defaultdict(list)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        for item in session.items:
            assert isinstance(item, pytest.Function)
            place = (str(item.path.relative_to(TESTS)), item.originalname)
            for identity in (str(value) for mark in item.iter_markers("failure") for value in mark.args):
                if place not in self.found[identity]:
                    self.found[identity].append(place)


def proofs() -> dict[str, list[tuple[str, str]]]:
    """id -> (file below tests/, test), in order. Raises RuntimeError when pytest cannot collect."""
    collector = Collector()
    with contextlib.redirect_stdout(io.StringIO()) as said:
        status = pytest.main(["--collect-only", "--quiet", "-p", "no:cacheprovider", str(TESTS)], [collector])
    if status != pytest.ExitCode.OK:
        raise RuntimeError(f"pytest --collect-only ended with {status}: {said.getvalue()[-2000:]}")
    return {identity: sorted(places) for identity, places in collector.found.items()}


def page() -> str:
    """The page as Markdown."""
    lines = [
        "# Failures that people reported of other launchers, and the tests that keep them away",
        "",
        f"Written by `{REPAIR}`; do not edit. Each test goes red when what it is marked for comes back.",
        "The last column: where the whole wants a GPU, InfiniBand, NCCL or a container, what is tested; what is not.",
        "",
        "| id | reported in | what goes wrong elsewhere | tests here | only half |",
        "|---|---|---|---|---|",
    ]
    found = proofs()
    if unknown := set(found) - {row["id"] for row in reports()}:
        raise RuntimeError(f"marks with ids that failures.tsv does not have: {sorted(unknown)}")
    for row in reports():
        files: dict[str, list[str]] = defaultdict(list)
        for file, name in found.get(row["id"], []):
            files[file].append(name.removeprefix("test_"))
        tests = "; ".join(f"{file}: {', '.join(names)}" for file, names in files.items()) or NO_TEST
        cells = [row["id"], row["reported in"], row["what goes wrong elsewhere"], tests, row["only half"]]
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="Write or compare docs/failures.md.")
    parser.add_argument("--write", action="store_true", help="write the page; without it it is only compared")
    text = page()
    if parser.parse_args().write:
        PAGE.write_text(text)
    elif PAGE.read_text() != text:
        print(f"docs/failures.md is not what the tests' marks give; repair: {REPAIR}", file=sys.stderr)
        return 1
    if NO_TEST in text:
        print("docs/failures.md has rows without a test", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
