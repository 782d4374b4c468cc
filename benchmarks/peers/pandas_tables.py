"""Tables of many runs as a notebook makes them with pandas: a loop over the runs, a frame of each, one concat.

`pandas_tables.py RESULTS OUT`: runs, steps, evaluations and attempts as CSV and Parquet, and one plot of all losses.
Less than `summarise` makes: no seeds, scaling, costs, pages, failures, checks of damaged files, and one plot of eight.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import pandas as pd
import yaml


def main() -> None:
    results, out = Path(sys.argv[1]), Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    runs, steps, evaluations, attempts = [], [], [], []
    for folder in sorted((results / "runs").iterdir()):
        config = yaml.load((folder / "config.yaml").read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        train = json.loads((folder / "train.json").read_text())
        runs.append(pd.json_normalize({**{f"config.{key}": value for key, value in config.items()}, **train}))
        steps.append(pd.read_json(folder / "metrics.jsonl", lines=True).assign(run=folder.name))
        evaluation = json.loads((folder / "evaluation.json").read_text())
        evaluations.append(pd.json_normalize(evaluation))
        for path in sorted(folder.glob("launch/*/attempt.json")):
            attempts.append(pd.json_normalize(json.loads(path.read_text())).assign(run=folder.name))
    tables = {"runs": runs, "steps": steps, "evaluations": evaluations, "attempts": attempts}
    frames = {name: pd.concat(parts, ignore_index=True) for name, parts in tables.items()}
    frames["steps"] = frames["steps"].drop(columns="metrics", errors="ignore")
    for name, frame in frames.items():
        frame.to_csv(out / f"{name}.csv", index=False)
        frame.astype({key: str for key in frame if frame[key].dtype == object}).to_parquet(out / f"{name}.parquet")
    figure, axes = plt.subplots()
    for _, its in frames["steps"].groupby("run"):
        axes.plot(its["step"], its["loss"], linewidth=0.5)
    figure.savefig(out / "loss.svg")


if __name__ == "__main__":
    main()
