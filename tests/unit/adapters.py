"""Small data in files for tests, one set per adapter, each with the section `data` that reads it and a model for it."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trainpkg.__main__ import main
from trainpkg.config import Run

CONV = {"name": "conv", "width": 4, "side": 8, "channels": 3, "classes": 3}
GPT = {"name": "gpt", "dim": 8, "depth": 1, "heads": 1, "context": 8}
LINEAR = {"name": "torch.nn:Linear", "kwargs": {"in_features": 4, "out_features": 3}}
Parts = dict[str, Any]


def picture(label: int, number: int) -> bytes:
    """A PNG of 12 x 9 pixels whose brightness tells its class."""
    from PIL import Image

    noise = np.random.default_rng(number).integers(0, 40, (9, 12, 3))
    buffer = io.BytesIO()
    Image.fromarray((noise + 80 * label).astype(np.uint8)).save(buffer, "PNG")
    return buffer.getvalue()


def image_folder(folder: Path) -> Parts:
    for label, name in enumerate(("bright", "dark", "grey")):
        (folder / "images" / name / "deep").mkdir(parents=True)
        for number in range(20):
            place = folder / "images" / name / ("deep" if number % 2 else "") / f"{number}.png"
            place.write_bytes(picture(label, 100 * label + number))
    data = {"path": str(folder / "images"), "side": 8, "augment": "crop_flip", "validation_fraction": 0.3}
    return {"task": "images", "model": CONV, "data": {"name": "image_folder", **data}}


def webdataset(folder: Path) -> Parts:
    for shard in range(3):
        with tarfile.open(folder / f"part-{shard:02d}.tar", "w") as archive:
            for number in range(17):
                label = number % 3
                content = {"png": picture(label, number + 50 * shard), "cls": str(label).encode(), "json": b"{}"}
                for extension, what in content.items():
                    member = tarfile.TarInfo(f"./{shard}/{number:04d}.{extension}")
                    member.size = len(what)
                    archive.addfile(member, io.BytesIO(what))
    data = {"path": f"{folder}/part-{{00..01}}.tar", "validation": f"{folder}/part-02.ta*", "side": 8}
    return {"task": "images", "model": CONV, "data": {"name": "webdataset", "augment": "crop", **data}}


def tokens(folder: Path) -> Parts:
    (folder / "texts").mkdir()
    for number in range(40):
        (folder / "texts" / f"{number}.txt").write_text(f"Document {number} speaks of {number * number}. ")
    (folder / "more.jsonl").write_text("".join(json.dumps({"text": f"line {i} äöü"}) + "\n" for i in range(30)))
    out = ["tokenize", "--out", str(folder / "tokens"), "--validation-fraction", "0.3"]
    assert main([*out, str(folder / "texts"), str(folder / "more.jsonl")]) == 0
    return {"task": "language", "model": GPT, "data": {"name": "tokens", "path": str(folder / "tokens")}}


def table(folder: Path) -> Parts:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(60, 4))
    lines = ["a,b,c,d,kind,note"]
    lines += [",".join([*map(str, row), "xyz"[int(row[0] > 0) + int(row[1] > 0)], "text"]) for row in rows]
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")
    data = {"name": "table", "path": str(folder / "rows.csv"), "target": "kind"}
    return {"task": "images", "model": LINEAR, "data": data}


def parquet(folder: Path) -> Parts:
    pandas = pytest.importorskip("pandas")
    parts = table(folder)
    pandas.read_csv(folder / "rows.csv").to_parquet(folder / "rows.parquet")
    parts["data"]["path"] = str(folder / "*.parquet")
    return parts


def hf_dataset(folder: Path) -> Parts:
    datasets = pytest.importorskip("datasets", reason="pip install 'trainpkg[datasets]'")
    rows = [[(i * j) % 200 for j in range(9)] for i in range(50)]
    datasets.Dataset.from_dict({"ids": rows}).save_to_disk(str(folder / "saved"))
    data = {"name": "hf_dataset", "path": str(folder / "saved"), "inputs": "ids"}
    return {"task": "language", "model": GPT, "data": data}


def darker(by: int) -> Any:
    """A transform of images."""
    return lambda image: image.point(lambda value: value // by)


ADAPTERS: dict[str, Callable[[Path], Parts]] = {
    one.__name__: one for one in (image_folder, webdataset, tokens, table, parquet, hf_dataset)
}


def run_of(parts: Parts, **changes: Any) -> Run:
    """A short run with these parts; `data` in `changes` is laid over."""
    tree = {"run": "files", "recipe": "files", "optim": {"warmup_steps": 2}, "launch": {"device": "cpu"}}
    tree |= {"train": {"max_steps": 4, "global_batch": 20}, "logging": {"every_steps": 2, "eval_every_steps": 4}}
    data = {**parts["data"], **changes.pop("data", {})}
    return Run.model_validate(tree | parts | {"data": data} | changes)
