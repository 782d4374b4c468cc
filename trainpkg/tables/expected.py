"""What the sheet says of each run, for the tables: its fingerprint above all, worked out once per written run.

Checking thousands of rows takes longer than reading what changed in their results. So a row whose words, with those of
its recipe and config, are the same as when the tables were written last keeps the fingerprint that it had then.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from trainpkg import sheet
from trainpkg.errors import UserError
from trainpkg.tables.files.collect import Expected


def expected_runs(loaded: sheet.Sheet, config: Path | dict[str, Any], before: pa.Table | None) -> Iterator[Expected]:
    """All runs in the sheet's order; `loaded` lazily from `config`; `before` is what `cache.load_runs` gives.

    One by one, so that reading begins with the first. Raises UserError with everything that is wrong.
    """
    runs, known = loaded.runs, _known(before)
    try:
        for name in runs:
            words = runs.words(name)
            known_words, fingerprint = known.get(name, ("", None))
            if fingerprint is None or words != known_words:
                fingerprint = runs[name].fingerprint()
            yield Expected(name, runs.recipe(name), fingerprint, partial(_config, runs, name), words=words)
    except UserError:
        sheet.load(config)  # says all of it, not the first thing alone
        raise


def _config(runs: sheet.Runs, name: str) -> Mapping[str, Any]:
    return runs[name].flat()


def _known(before: pa.Table | None) -> dict[str, tuple[str, str | None]]:
    if before is None:
        return {}
    columns = (before[name].to_pylist() for name in ("run", "words", "fingerprint"))
    return {run: (words, fingerprint) for run, words, fingerprint in zip(*columns, strict=True)}
