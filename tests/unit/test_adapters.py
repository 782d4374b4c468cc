"""Data from files: what comes out of each adapter, and what all of them promise of order, ranks and restarts."""

from __future__ import annotations

import dataclasses
import json
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.unit.adapters import ADAPTERS, Parts, picture, run_of
from trainpkg import contract, data, models, tasks, tokenize
from trainpkg.__main__ import main
from trainpkg.config import Run, Train
from trainpkg.data.feed import Feed
from trainpkg.errors import UserError
from trainpkg.runtime.sequence import Pieces

CPU = torch.device("cpu")


@pytest.fixture(params=list(ADAPTERS))
def parts(request: pytest.FixtureRequest, tmp_path: Path) -> Parts:
    return ADAPTERS[request.param](tmp_path)


def seen(run: Run, workers: int, rank: int, world_size: int, position: int, num_steps: int) -> list[Tensor]:
    """Inputs and targets of each step of a rank, in turn."""
    splits = dataclasses.replace(data.build(run, CPU), workers=workers)
    feed = Feed(splits, run.seed, Train(max_steps=1, global_batch=20), CPU, rank, world_size)
    found: list[Tensor] = []
    for step in range(num_steps):
        for _, _, batch in feed.step(position + 20 * step):
            found += batch
    feed.close()
    return found


def test_restarts_workers_and_ranks_change_no_sample(parts: Parts) -> None:
    """Random crops and all: what is altered is altered as each sample's own seed says."""
    run = run_of(parts)
    whole = seen(run, 0, 0, 1, 0, 5)
    for workers, position in ((0, 60), (2, 60)):
        late = seen(run, workers, 0, 1, position, 2)
        assert all(torch.equal(a, b) for a, b in zip(late, whole[6:], strict=True))
    ranks = [seen(run, 0, rank, 2, 0, 5) for rank in range(2)]
    assert all(torch.equal(torch.cat(pair), one) for *pair, one in zip(*ranks, whole, strict=True))


def test_a_task_takes_what_comes_and_held_out_samples_stand_still(parts: Parts) -> None:
    run = run_of(parts)
    splits, again = data.build(run, CPU), data.build(run, CPU)
    assert splits.digest == again.digest and len(splits.digest) == 16
    everything = torch.arange(splits.validation.num_samples)
    batch = splits.validation.batch(everything)
    for one, other in zip(batch, again.validation.batch(everything), strict=True):
        assert torch.equal(one, other)
    task = tasks.build(run, Pieces(), splits)
    if run.model.name != "gpt":
        model = models.build(run.model).to_empty(device="cpu")
        for weight in model.parameters():
            torch.nn.init.normal_(weight, std=0.1)
        sums = task.sums(model, batch, torch.ones(len(everything), dtype=torch.bool))
        assert task.metrics(sums, splits.facts)["loss"] > 0
    else:
        assert batch[0].dtype == batch[1].dtype == torch.int64 and batch[0].shape == (len(everything), 8)
        assert torch.equal(batch[0][:, 1:], batch[1][:, :-1].where(batch[1][:, :-1] >= 0, batch[0][:, 1:]))


def test_workers_are_the_share_of_the_cpus_less_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parts = ADAPTERS["image_folder"](tmp_path)
    for told, workers in (("1", 0), ("4", 3), ("64", 8)):
        monkeypatch.setenv("OMP_NUM_THREADS", told)
        assert data.build(run_of(parts), CPU).workers == workers
        assert data.build(run_of(parts, data={"workers": 5}), CPU).workers == 5
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: set(range(12)))
    own = {"device": "cpu", "env": {"OMP_NUM_THREADS": "1"}}
    assert data.build(run_of(parts, launch=own), CPU).workers == 5, "threads that the user chose say nothing of CPUs"
    assert data.build(run_of(ADAPTERS["table"](tmp_path)), CPU).workers == 0


def test_an_image_is_scaled_cut_and_altered_in_training_alone(tmp_path: Path) -> None:
    parts = ADAPTERS["image_folder"](tmp_path)
    plain = data.build(run_of(parts, data={"augment": "none", "side": 9}, model={**parts["model"], "side": 9}), CPU)
    labels = plain.train.batch(torch.arange(plain.train.num_samples))[1]
    image, label = plain.validation.batch(torch.tensor([0]))
    assert image.shape == (1, 3, 9, 9) and image.min() >= -1 and image.max() <= 1
    assert plain.num_classes == 3 and set(labels.tolist()) == {0, 1, 2}
    assert abs(image.mean() * 127.5 + 127.5 - (20 + 80 * label.item())) < 6, "its brightness tells its class"
    moved = data.build(run_of(parts), CPU).train
    one, other = (moved.batch(torch.tensor([3]), torch.tensor([seed]))[0] for seed in (1, 2))
    assert not torch.equal(one, other) and torch.equal(one, moved.batch(torch.tensor([3]), torch.tensor([1]))[0])
    grey = data.build(run_of(parts, data={"channels": 1}, model={**parts["model"], "channels": 1}), CPU)
    assert grey.train.batch(torch.tensor([0, 1]))[0].shape == (2, 1, 8, 8)


def test_a_transform_by_name_is_for_training_images(tmp_path: Path) -> None:
    parts = ADAPTERS["webdataset"](tmp_path)
    by_name = {"augment": "none", "transform": "tests.unit.adapters:darker", "transform_kwargs": {"by": 4}}
    plain, dark = (data.build(run_of(parts, data=one), CPU) for one in ({"augment": "none"}, by_name))
    every = torch.arange(plain.train.num_samples)
    bright, low = ((one.train.batch(every, every)[0] + 1).mean().item() for one in (plain, dark))
    assert low == pytest.approx(bright / 4, rel=0.05)
    assert torch.equal(plain.validation.batch(every[:5])[0], dark.validation.batch(every[:5])[0])
    odd = {"transform": "tests.unit.adapters:picture", "transform_kwargs": {"label": 1, "number": 2}}
    with pytest.raises(UserError, match="made bytes, which cannot be called with an image"):
        data.build(run_of(parts, data=odd), CPU)
    with pytest.raises(UserError, match=r"data.transform_kwargs = {'bi': 4}: .*missing a required argument: 'by'"):
        data.build(run_of(parts, data=by_name | {"transform_kwargs": {"bi": 4}}), CPU)


def test_files_that_are_not_there_yet_are_left_to_the_nodes(tmp_path: Path) -> None:
    parts = ADAPTERS["table"](tmp_path)
    assert contract.problems_of(run_of(parts)) == []
    assert contract.problems_of(run_of(parts, data={"path": "/nowhere"})) == []
    wide = {"name": "torch.nn:Linear", "kwargs": {"in_features": 5, "out_features": 3}}
    (problem,) = contract.problems_of(run_of(parts, model=wide))
    assert "a tensor [2, 4] of float32" in problem and "does not go through model and task" in problem


def test_tokens_are_every_byte_once(tmp_path: Path) -> None:
    parts = ADAPTERS["tokens"](tmp_path)
    splits = data.build(run_of(parts), CPU)
    assert splits.unit == "byte"
    numbers = np.fromfile(tmp_path / "tokens/validation.bin", np.uint8)
    targets = splits.validation.batch(torch.arange(splits.validation.num_samples))[1]
    assert targets[targets >= 0].tolist() == numbers[1:].tolist()
    both = b"".join((tmp_path / f"tokens/{part}.bin").read_bytes() for part in ("train", "validation"))
    texts = [path.read_bytes() for path in (tmp_path / "texts").iterdir()]
    texts += [json.loads(line)["text"].encode() for line in (tmp_path / "more.jsonl").read_text().splitlines()]
    assert sorted(both) == sorted(b"".join(texts)) and all(text in both for text in texts)
    assert json.loads((tmp_path / "tokens/meta.json").read_text())["vocabulary"] == 256
    assert main(["tokenize", "--out", str(tmp_path / "tokens"), str(tmp_path / "texts")]) == 2, "it is there already"


def test_token_files_of_nanogpt_are_read(tmp_path: Path) -> None:
    np.arange(400, dtype="<u2").tofile(tmp_path / "train.bin")
    np.arange(100, dtype="<u2").tofile(tmp_path / "val.bin")
    parts = ADAPTERS_TOKENS | {"data": {"name": "tokens", "path": str(tmp_path)}}
    splits = data.build(run_of(parts), CPU)
    assert (splits.train.num_samples, splits.validation.num_samples, splits.unit) == (49, 13, "token")
    assert splits.train.batch(torch.tensor([1]))[1].tolist() == [list(range(9, 17))]
    (tmp_path / "val.bin").unlink()
    cut = data.build(run_of(parts), CPU)
    assert cut.train.batch(torch.tensor([cut.train.num_samples - 1]))[1].max() <= 400 - 40


ADAPTERS_TOKENS: dict[str, Any] = {
    "task": "language",
    "model": {"name": "gpt", "dim": 8, "depth": 1, "heads": 1, "context": 8, "vocabulary": 512},
}


def test_a_tokenizer_s_file_makes_tokens(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="pip install 'trainpkg[tokenizers]'")
    model = tokenizers.models.WordLevel({"[UNK]": 0, "a": 1, "b": 2, "<|endoftext|>": 3}, unk_token="[UNK]")
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "t.txt").write_text("a b c a")
    out = ["tokenize", "--out", str(tmp_path / "out"), "--tokenizer", str(tmp_path / "tokenizer.json")]
    assert main([*out, "--validation-fraction", "0", str(tmp_path / "t.txt")]) == 0
    assert np.fromfile(tmp_path / "out/train.bin", np.uint8).tolist() == [1, 2, 0, 1, 3]
    assert (tmp_path / "out/tokenizer.json").exists()


def test_a_table_s_columns_become_numbers(tmp_path: Path) -> None:
    parts = ADAPTERS["table"](tmp_path)
    splits = data.build(run_of(parts), CPU)
    assert (splits.train.num_samples, splits.validation.num_samples, splits.num_classes) == (54, 6, 3)
    inputs, targets = splits.train.batch(torch.arange(54))
    assert inputs.shape == (54, 4) and inputs.dtype == torch.float32 and targets.dtype == torch.int64
    assert inputs.mean(0).abs().max() < 1e-5 and (inputs.std(0, unbiased=False) - 1).abs().max() < 1e-5
    numbers = data.build(run_of(parts, task="torch.nn:Identity", data={"target": "d"}), CPU)
    assert numbers.train.batch(torch.arange(3))[1].dtype == torch.float32 and numbers.num_classes is None


def test_what_is_wrong_with_files_is_named(tmp_path: Path) -> None:
    made = {}
    for name in ("image_folder", "webdataset", "tokens", "table"):
        (tmp_path / name).mkdir()
        made[name] = ADAPTERS[name](tmp_path / name)
    (tmp_path / "image_folder/images/empty").mkdir()
    (tmp_path / "image_folder/other/bright").mkdir(parents=True)
    (tmp_path / "image_folder/other/bright/1.png").write_bytes(picture(0, 0))
    with tarfile.open(tmp_path / "odd.tar", "w") as archive:
        archive.addfile(tarfile.TarInfo("a.txt"))
    cases: list[tuple[str, dict[str, Any], str]] = [
        ("image_folder", {}, r"data.path: .*/images/empty holds no image"),
        ("image_folder", {"path": "/nowhere"}, r"data.path: there is no folder /nowhere"),
        (
            "webdataset",
            {"path": "/nowhere/{0..1}.tar"},
            r"data.path = '/nowhere/{0..1}.tar': there is no /nowhere/0.tar",
        ),
        ("webdataset", {"path": f"{tmp_path}/odd.tar"}, r"sample 'a' has neither of data.inputs"),
        ("tokens", {"path": "/nowhere"}, r"data.path: there is no /nowhere/train.bin; trainpkg tokenize makes"),
        ("table", {"target": "kinds"}, r"data.target: there is no column 'kinds' .*nearest column: 'kind'"),
        ("table", {"inputs": ["note"]}, r"data.inputs: \['note'\] of .* is made of numbers"),
    ]
    for name, changes, text in cases:
        with pytest.raises(UserError, match=text):
            data.build(run_of(made[name], data=changes), CPU)
    model = made["tokens"]["model"] | {"vocabulary": 300}
    with pytest.raises(UserError, match=r"set model.vocabulary: 256"):
        data.build(run_of(made["tokens"], model=model), CPU)
    five = run_of(made["image_folder"], model={**made["image_folder"]["model"], "classes": 5})
    with pytest.raises(UserError, match=r"model.classes = 5, but the data have 3"):
        tasks.build(five, Pieces(), dataclasses.replace(data.build(run_of(made["table"]), CPU), num_classes=3))
    with pytest.raises(ValueError, match=r"model.side = 16 contradicts data.side = 8"):
        run_of(made["webdataset"], model={**made["webdataset"]["model"], "side": 16})


def test_a_damaged_image_is_named(tmp_path: Path) -> None:
    parts = ADAPTERS["image_folder"](tmp_path)
    for path in (tmp_path / "images").rglob("*.png"):
        path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(UserError, match=r"images/\w+/.*png cannot be read as an image"):
        data.build(run_of(parts), CPU).train.batch(torch.tensor([0]))


def test_an_extra_that_is_missing_is_named_with_its_install_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = ADAPTERS["image_folder"](tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    for module in ("datasets", "tokenizers", "torchvision"):
        monkeypatch.setitem(sys.modules, module, None)
    rows = ADAPTERS_TOKENS | {"data": {"name": "hf_dataset", "path": "x", "inputs": "ids"}}
    altered = {**parts, "data": {**parts["data"], "transform": "torchvision.transforms.v2:RandAugment"}}
    for wanted, extra in ((altered, "torchvision"), (rows, "datasets")):
        with pytest.raises(UserError, match=rf"pip install 'trainpkg\[{extra}\]'"):
            data.build(run_of(wanted), CPU)
    with pytest.raises(UserError, match=r"pip install 'trainpkg\[tokenizers\]'"):
        tokenize.of_file(tmp_path / "tokenizer.json", None)


def test_a_class_or_token_that_the_model_does_not_have_is_named(tmp_path: Path) -> None:
    parts = ADAPTERS["webdataset"](tmp_path)
    run = run_of(parts, model={**parts["model"], "classes": 2})
    with pytest.raises(UserError, match=r"part-00.tar: .*/0002.cls holds 2, but model.classes = 2: there are 0 to 1"):
        data.build(run, CPU).train.batch(torch.arange(5))
    run = run_of(parts, model={"name": "torch.nn:Flatten"}, task_kwargs={"num_classes": 2})
    with pytest.raises(UserError, match=r"0002.cls holds 2, but task_kwargs.num_classes = 2: there are 0 to 1"):
        data.build(run, CPU).train.batch(torch.arange(5))
    parts = ADAPTERS["hf_dataset"](tmp_path)
    run = run_of(parts, model={**parts["model"], "vocabulary": 64})
    with pytest.raises(UserError, match=r"saved: row \d+ holds \d+, but model.vocabulary = 64: there are 0 to 63"):
        data.build(run, CPU).train.batch(torch.arange(40))


def test_held_out_rows_need_the_training_rows_columns(tmp_path: Path) -> None:
    parts = ADAPTERS["table"](tmp_path)
    lines = (tmp_path / "rows.csv").read_text().splitlines()
    held = {
        "there is no column 'kind', which data.path has": [line.rsplit(",", 2)[0] for line in lines],
        "there are empty cells in .'b'.": [lines[0], "1,,3,4,x,text"],
        ".'b'. hold numbers in data.path, and others here": [lines[0], "1,much,3,4,x,text"],
    }
    for words, rows in held.items():
        (tmp_path / "held.csv").write_text("\n".join(rows) + "\n")
        with pytest.raises(UserError, match=rf"data.validation = '.*held.csv': {words}"):
            data.build(run_of(parts, data={"validation": str(tmp_path / "held.csv")}), CPU)
    with pytest.raises(ValueError, match=r"'table' with model.name = 'conv': rows are no images"):
        run_of(parts, model={"name": "conv"})
