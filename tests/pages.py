"""The pages that people read, and their code blocks. What is done with a block is its test's business.

A block's info string says its language and then its marks: `sh run` is run in a copy of the workflow, in order with the
page's others; `sh slurm` on the tests' Slurm; all else has to parse.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "config/README.md", ROOT / "benchmarks/README.md", *ROOT.glob("docs/*.md")])
_BLOCK = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One fenced block; `line` is that of its fence."""

    page: Path
    line: int
    language: str
    marks: tuple[str, ...]
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks(page: Path) -> list[Block]:
    """The blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _BLOCK.finditer(text):
        language, *marks = match["info"].split() or [""]
        line = text.count("\n", 0, match.start()) + 1
        found.append(Block(page, line, language, tuple(marks), match["text"]))
    return found


def marked(mark: str) -> dict[Path, list[Block]]:
    """The blocks with a mark, by page."""
    found = {page: [block for block in blocks(page) if mark in block.marks] for page in PAGES}
    return {page: some for page, some in found.items() if some}
