"""The same tables with polars: its own reader of JSON lines over all files at once, the rest in a loop.

`polars_tables.py RESULTS OUT`, see pandas_tables.py. The small JSON files of all runs are joined into one text first,
which its reader is fastest at.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import polars as pl
import yaml


def flat(tree: dict[str, object], prefix: str = "") -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{key}.")
        else:
            found[prefix + key] = json.dumps(value) if isinstance(value, list) else value
    return found


def main() -> None:
    results, out = Path(sys.argv[1]), Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    runs, evaluations, attempts = [], [], []
    for folder in sorted((results / "runs").iterdir()):
        config = yaml.load((folder / "config.yaml").read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        runs.append(flat({"config": config, **json.loads((folder / "train.json").read_text())}))
        evaluations.append(flat(json.loads((folder / "evaluation.json").read_text())))
        for path in sorted(folder.glob("launch/*/attempt.json")):
            attempts.append(flat(json.loads(path.read_text())) | {"run": folder.name})
    sometimes = {"tokens": pl.Int64, "tokens_per_second": pl.Float64}  # null in some files
    files = results / "runs/*/metrics.jsonl"
    steps = pl.scan_ndjson(files, include_file_paths="run", infer_schema_length=None, schema_overrides=sometimes)
    steps = steps.with_columns(pl.col("run").str.extract(r"/([^/]+)/metrics\.jsonl$")).collect()
    flattened = steps.drop("metrics", strict=False)
    tables = {"runs": runs, "evaluations": evaluations, "attempts": attempts}
    frames = {name: pl.DataFrame(rows, infer_schema_length=None, strict=False) for name, rows in tables.items()}
    for name, frame in (frames | {"steps": flattened}).items():
        frame.write_csv(out / f"{name}.csv")
        frame.write_parquet(out / f"{name}.parquet")
    figure, axes = plt.subplots()
    for _, its in flattened.group_by("run", maintain_order=True):
        axes.plot(its["step"].to_numpy(), its["loss"].to_numpy(), linewidth=0.5)
    figure.savefig(out / "loss.svg")


if __name__ == "__main__":
    main()
