"""Tables as pages that a browser sorts and searches, alone or inside the report. It knows nothing of runs.

A page is one file that needs no network. The report shows it as a data URL in a frame, and browsers refuse such a URL
beyond 2 MiB without a word; so rows are packed, and those that do not fit are left to the CSV file, which is said.
"""

from __future__ import annotations

import base64
import html
import json
import zlib
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
import pandas as pd

# The report writes a page as base64 once more: 4 bytes for 3.
MAX_PAGE_BYTES = 1_500_000
DIGITS = 6
NUMERIC_TYPES = ("int", "float")
TEMPLATE = Path(__file__).with_name("page.html")


def page(title: str, explanation: str, table: pd.DataFrame, all_in: str) -> bytes:
    """The page of a table; `all_in` is the file that has all rows and digits. Empty columns are left out."""
    table = table[[name for name in table.columns if table[name].notna().any()]]
    rows = len(table)
    while True:
        left_out = f" The first {rows:,} of {len(table):,} rows; all are in {all_in}." if rows < len(table) else ""
        content = _filled(title, f"{explanation}{left_out}", table.head(rows))
        if len(content) <= MAX_PAGE_BYTES:
            return content
        rows = int(0.95 * rows * MAX_PAGE_BYTES / len(content))


def _filled(title: str, explanation: str, table: pd.DataFrame) -> bytes:
    columns = [[str(name), *_column(table[name])] for name in table.columns]
    packed = zlib.compress(json.dumps(columns, separators=(",", ":")).encode(), 6)
    template = Template(TEMPLATE.read_text())
    return template.substitute(
        title=html.escape(title), explanation=html.escape(explanation), data=base64.b64encode(packed).decode()
    ).encode()


def _column(column: pd.Series[Any]) -> tuple[str, list[Any], list[str]]:
    """Its kind; numbers, null for a gap; or of text the places in the list of all words, -1 for a gap."""
    if not column.dtype.name.lower().startswith(NUMERIC_TYPES):
        codes, words = pd.factorize(column.to_numpy(dtype=object, na_value=np.nan))
        return "text", codes.tolist(), [str(word) for word in words]
    values = column.to_numpy(dtype=np.float64, na_value=np.nan)
    finite = np.isfinite(values)
    if (values[finite] % 1 == 0).all():
        found = np.where(finite, values, 0).astype(np.int64).astype(object)
    else:
        # Digits beyond these are noise to a reader and do not compress.
        size = np.abs(np.where(finite & (values != 0), values, 1))
        scale = 10.0 ** (DIGITS - 1 - np.floor(np.log10(size)))
        found = (np.round(values * scale) / scale).astype(object)
    found[~finite] = None
    return "number", found.tolist(), []
