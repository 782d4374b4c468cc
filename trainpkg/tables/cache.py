"""What was read before: the folder `cache` beside the tables. Safe to delete; holds no code.

Most of it is the tables themselves, by a second name: Snakemake deletes the tables before it has them written again. It
counts only as a whole: its index knows what the other files hold, and which version of the reading code made them. Else
everything is read anew.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

import trainpkg
from trainpkg.tables import columns
from trainpkg.tables.render import publish
from trainpkg.tables.rows.batch import PARTS, STEPS, TYPES, Batch

FOLDER = "cache"
INDEX = "runs.parquet"
KEY = b"trainpkg"


@cache
def _version() -> str:
    """Over the sources that read results and configs: another version may read the same files otherwise."""
    digest = hashlib.sha256(pa.__version__.encode())
    package = Path(trainpkg.__file__).parent
    for pattern in ("tables/*.py", "tables/files/*.py", "tables/rows/*.py", "config/*.py", "*.py"):
        for path in sorted(package.glob(pattern)):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def _state(folder: Path) -> dict[str, str]:
    """By content: Snakemake touches what a rule has written."""
    return {"version": _version(), **{part: _digest(folder / f"{part}.parquet") for part in PARTS}}


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()[:32]


def load_runs(tables_dir: Path) -> pa.Table | None:
    """The runs alone, as they were; what is written down for them is enough to trust their fingerprints."""
    try:
        with pq.ParquetFile(tables_dir / FOLDER / INDEX) as file:
            known = json.loads(file.schema_arrow.metadata[KEY])["version"] == _version()
            return file.read(["run", "words", "fingerprint"]) if known else None
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException):
        return None


def load(tables_dir: Path) -> Batch | None:
    """What the tables in this directory were made from, None where nothing says it that can be relied on."""
    folder = tables_dir / FOLDER
    try:
        with pq.ParquetFile(folder / INDEX) as file:
            if json.loads(file.schema_arrow.metadata[KEY]) != _state(folder):
                return None
            runs = file.read()
        parts = {part: _part(folder / f"{part}.parquet", part) for part in PARTS}
        batch = Batch(runs.replace_schema_metadata(None), **parts)
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException):
        return None
    whole = all(batch.counts(part).sum() == parts[part].num_rows for part in PARTS)
    return batch if whole else None


def _part(path: Path, part: str) -> pa.Table:
    if part == "steps":
        return pq.read_table(path, columns=STEPS.names).cast(STEPS)
    table = pq.read_table(path).drop_columns(["run", "recipe"])
    types: dict[str, str] = {"attempts": columns.ATTEMPT, "evaluations": columns.EVALUATION}[part].copy()
    types |= dict.fromkeys(columns.metric_columns(table.column_names), "float64")
    return table.select(list(types)).cast(pa.schema([(name, TYPES[kind]) for name, kind in types.items()]))


def save(tables_dir: Path, runs: pa.Table) -> None:
    """Keep the tables as they lie there; `runs` is that part of the batch which they were made from."""
    folder = tables_dir / FOLDER
    folder.mkdir(exist_ok=True)
    for part in PARTS:
        _second_name(tables_dir / f"{part}.parquet", folder / f"{part}.parquet")
    stamp = {KEY: json.dumps(_state(folder)).encode()}
    sink = pa.BufferOutputStream()
    pq.write_table(runs.unify_dictionaries().replace_schema_metadata(stamp), sink)
    publish(folder, [(INDEX, sink.getvalue().to_pybytes())])


def _second_name(path: Path, name: Path) -> None:
    """A link, which takes no room, or a copy where the file system knows no links."""
    name.unlink(missing_ok=True)
    try:
        name.hardlink_to(path)
    except OSError:
        shutil.copyfile(path, name)
