"""From the columns of all runs to the tables as they are written: types, order, and what only all runs together say."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from trainpkg.tables import columns
from trainpkg.tables.rows.batch import CONFIG, PARTS, Batch
from trainpkg.tables.rows.frames import typed
from trainpkg.tables.scaling import scaling
from trainpkg.tables.seeds import seeds_table

LABELS = ("run", "recipe")


@dataclass(frozen=True)
class Tables:
    """All tables of a results directory; rows in sheet order, then by name."""

    runs: pd.DataFrame
    seeds: pd.DataFrame
    steps: pa.Table
    """Millions of rows: in Arrow's columns, which need no copies to be joined, written or drawn."""
    evaluations: pd.DataFrame
    attempts: pd.DataFrame


def assemble(batch: Batch) -> Tables:
    """The tables of runs in their order."""
    runs = _runs(batch)
    owners = {part: np.repeat(np.arange(len(runs)), batch.counts(part)) for part in PARTS}
    tables: dict[str, pd.DataFrame] = {}
    for part, types in (("attempts", columns.ATTEMPT), ("evaluations", columns.EVALUATION)):
        table = _fixed(getattr(batch, part), types)
        labels = {name: runs[name].to_numpy(dtype=object)[owners[part]] for name in LABELS}
        tables[part] = pd.concat([pd.DataFrame(labels, dtype="string"), table], axis=1)
    return Tables(runs=runs, seeds=seeds_table(runs), steps=_steps(batch.steps, runs, owners["steps"]), **tables)


def _runs(batch: Batch) -> pd.DataFrame:
    fixed = _fixed(batch.runs, columns.RUN)
    asked = sorted(name for name in batch.runs.column_names if name.startswith(CONFIG))
    # Without values it is a key of runs that are gone.
    asked = [name for name in asked if batch.runs[name].null_count < batch.runs.num_rows]
    keys = {name.removeprefix(CONFIG): _decoded(batch.runs[name]) for name in asked}
    order = [*columns.BEFORE_CONFIG, *keys, *(name for name in fixed.columns if name not in columns.BEFORE_CONFIG)]
    runs = pd.concat([fixed, pd.DataFrame(keys, index=fixed.index)], axis=1)[order]
    runs["place_in_recipe"] = places(runs)
    scaled = scaling(runs, list(keys))
    runs[list(scaled.columns)] = scaled
    return runs


def _fixed(table: pa.Table, types: Mapping[str, str]) -> pd.DataFrame:
    """Columns of known types, and where metrics belong those that have a value, in their order."""
    metrics = [name for name in columns.metric_columns(table.column_names) if table[name].null_count < table.num_rows]
    names = list(types)
    place = names.index("eval_step") + 1 if "eval_step" in names else len(names)
    names[place:place] = metrics
    kinds = {pa.int64(): pd.Int64Dtype(), pa.string(): pd.StringDtype(), pa.bool_(): pd.BooleanDtype()}
    frame: pd.DataFrame = table.select(names).to_pandas(types_mapper=kinds.get)
    return frame


def _decoded(texts: pa.ChunkedArray) -> pd.Series[Any]:
    """Values of a key of the config, of the type that holds all of them."""
    encoded = pc.dictionary_encode(texts.cast(pa.string())).combine_chunks()
    values = typed([json.loads(text) for text in encoded.dictionary.to_pylist()])
    codes = encoded.indices.fill_null(-1).to_numpy()
    return pd.Series(pd.api.extensions.take(values.array, codes, allow_fill=True))


def _steps(table: pa.Table, runs: pd.DataFrame, owners: NDArray[np.int64]) -> pa.Table:
    """The training records with the names of their runs; whole numbers where all of a column are."""
    columns_ = {name: _labels(runs[name], owners) for name in LABELS}
    for name in table.column_names:
        columns_[name] = _whole(table[name]) if name in columns.WHOLE_STEPS else table[name]
    return pa.table(columns_)


def _labels(names: pd.Series[Any], owners: NDArray[np.int64]) -> pa.DictionaryArray:
    """The name of each row's run, each name kept once."""
    codes, known = pd.factorize(names)
    texts = pa.array(known.astype(object), pa.string())
    return pa.DictionaryArray.from_arrays(pa.array(codes.astype(np.int32)[owners]), texts)


def _whole(column: pa.ChunkedArray) -> pa.ChunkedArray:
    try:
        return column.cast(pa.int64())
    except pa.ArrowInvalid:  # a fraction, or infinite
        return column


def places(runs: pd.DataFrame) -> pd.Series[Any]:
    """Each finished run's place in its recipe by the recipe's own metric and direction, 1 the best; equals share one.

    Empty where runs of a recipe name several metrics, or none.
    """
    known = runs[(runs["status"] == "finished") & runs["best_metric"].notna() & runs["best_metric_name"].notna()]
    measures = known["best_metric_name"] + "\0" + known["best_metric_mode"].fillna("")
    known = known[measures.groupby(known["recipe"]).transform("nunique") == 1]
    losses = known["best_metric"].where(known["best_metric_mode"] == "min", -known["best_metric"])
    return losses.groupby(known["recipe"]).rank(method="min").astype("Int64").reindex(runs.index)
