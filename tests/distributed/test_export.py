"""Weights for others: whole, by names that others know, read back to the same evaluation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from tests.distributed.start import TINY, config, run_ranks, weights
from trainpkg.__main__ import main
from trainpkg.runtime.checkpoints import hugging_face

pytestmark = [pytest.mark.distributed, pytest.mark.timeout(900)]
GPT: dict[str, Any] = {"strategy": "fsdp", "ema__decay": 0.5, "train__max_steps": 4, "logging__eval_every_steps": 4}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT, sharded over two ranks and trained, and the config that knows it."""
    folder = tmp_path_factory.mktemp("results")
    run = config("gpt", **GPT)
    run_ranks(run, folder / "runs" / "gpt", 2)
    (folder / "recipes").mkdir()
    tree = {k: v for k, v in run.tree().items() if k in ("strategy", "ema", "train", "logging", *TINY["gpt"])}
    (folder / "recipes/tiny.yaml").write_text(
        yaml.safe_dump({k: v for k, v in tree.items() if k not in ("run", "recipe")})
    )
    (folder / "runs.tsv").write_text("run\trecipe\ngpt\ttiny\n")
    return folder


def export(results: Path, out: Path, *options: str) -> dict[str, torch.Tensor]:
    places = {"results_dir": str(results), "sheet": str(results / "runs.tsv"), "recipes": str(results / "recipes")}
    assert main(["export", "--config-json", json.dumps(places), "--run", "gpt", "--out", str(out), *options]) == 0
    return load_file(out / "model.safetensors")


def judged(results: Path, **changes: Any) -> dict[str, Any]:
    run_ranks(config("gpt", **{**GPT, "strategy": None, **changes}), results / "runs" / "gpt", 2, stage="evaluate")
    found: dict[str, Any] = json.loads((results / "runs/gpt/evaluation.json").read_text())
    return found


def test_what_is_exported_is_what_was_trained(results: Path, tmp_path: Path) -> None:
    raw, averaged = export(results, tmp_path / "raw", "--weights", "raw"), export(results, tmp_path / "ema")
    trained = weights(results / "runs" / "gpt")
    assert raw.keys() == trained.keys() and all(torch.equal(raw[k], trained[k]) for k in raw)
    ema = load_file(results / "runs/gpt/model/ema.safetensors")
    assert all(torch.equal(averaged[k], ema[k]) for k in ema) and not torch.equal(
        raw["head.weight"], ema["head.weight"]
    )
    facts = json.loads((tmp_path / "raw/config.json").read_text())
    assert (facts["step"], facts["model"]["dim"], facts["weights"]) == (4, 16, "raw")


def test_an_export_is_evaluated_as_its_checkpoint(results: Path, tmp_path: Path) -> None:
    export(results, tmp_path / "plain")
    export(results, tmp_path / "there", "--format", "huggingface")
    wanted = judged(results)
    assert wanted["weights"] == "ema"
    for folder in ("plain", "there"):
        found = judged(results, evaluate__checkpoint=str(tmp_path / folder))
        assert (found["metrics"], found["step"], found["weights"]) == (wanted["metrics"], 4, "ema"), folder
    begun = config("gpt", **{**GPT, "train__init_from": str(tmp_path / "there"), "optim__lr": 1e-30, "ema": None})
    run_ranks(begun, tmp_path / "begun", 2)
    exported = load_file(tmp_path / "plain/model.safetensors")
    assert all(torch.allclose(w, exported[k], atol=1e-12) for k, w in weights(tmp_path / "begun").items())


def test_what_does_not_fit_is_named(results: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    there = export(results, tmp_path / "there", "--format", "huggingface")
    save_file({k: v for k, v in there.items() if "ln_f" not in k}, tmp_path / "there/model.safetensors")
    run = config("gpt", **{**GPT, "strategy": None, "evaluate__checkpoint": str(tmp_path / "there")})
    ranks = run_ranks(run, results / "runs/gpt", 2, stage="evaluate", expect=2)
    assert "evaluate.checkpoint: the weights in" in ranks.text() and "missing: norm.bias, norm.weight" in ranks.text()
    places = {"results_dir": str(results), "sheet": str(results / "runs.tsv"), "recipes": str(results / "recipes")}
    again = ["export", "--config-json", json.dumps(places), "--run", "gpt", "--out", str(tmp_path / "new")]
    for options, text in (
        (["--checkpoint", "77"], "step-00000077"),
        (["--out", str(tmp_path / "there")], "is there already"),
    ):
        assert main([*again, *options]) == 2
        assert text in capfd.readouterr().err
    assert not (tmp_path / "new").exists()


def test_the_mapping_to_gpt2_is_one_to_one() -> None:
    from trainpkg import models

    model = models.build(config("gpt").model)
    names = dict(model.named_parameters())
    there = {name: hugging_face.theirs(name) for name in names}
    assert len(set(there.values())) == len(there)
    back = hugging_face.sources(names, there.values())
    assert {name: source for name, (source, _) in back.items()} == there
    assert sum(turned for _, turned in back.values()) == 4 * 2


def test_transformers_reads_it_and_says_the_same(results: Path, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="pip install transformers")
    from trainpkg import models

    export(results, tmp_path / "plain")
    export(results, tmp_path / "there", "--format", "huggingface")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "there").eval()
    ours = models.build(config("gpt").model).eval()
    ours.load_state_dict(load_file(tmp_path / "plain/model.safetensors"), assign=True)
    text = "def f(x):\n  ä"
    numbers = transformers.AutoTokenizer.from_pretrained(tmp_path / "there")(text)["input_ids"]
    assert bytes(numbers) == text.encode()
    with torch.no_grad():
        one, other = theirs(torch.tensor([numbers])).logits, ours(torch.tensor([numbers]))
    assert torch.allclose(one, other, atol=1e-5)
