"""What `trainpkg tokenize` says of texts that are none, and writes about those that are."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from trainpkg import tokenize
from trainpkg.__main__ import main


def tokenized(folder: Path, texts: dict[str, str], *options: str) -> int:
    (folder / "in").mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / "in" / name).write_text(text)
    return main(["tokenize", "--out", str(folder / "out"), *options, str(folder / "in")])


@pytest.mark.parametrize("text", ["null", "7"])
def test_a_line_whose_text_is_none_is_named(tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert tokenized(tmp_path, {"a.jsonl": f'{{"text": "x"}}\n{{"text": {text}}}\n'}) == 2
    assert "a.jsonl:2: no JSON object with a text under 'text'" in capsys.readouterr().err


def test_nothing_left_for_training_is_told_as_that(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert tokenized(tmp_path, {"a.txt": "some text"}, "--validation-fraction", "0.999999") == 2
    assert "--validation-fraction 0.999999 holds out all documents" in capsys.readouterr().err


def test_bytes_per_token_are_of_what_is_judged(tmp_path: Path) -> None:
    encode = lambda texts: [[0] * (len(text) // (1 if text[0] == "a" else 4)) for text in texts]  # noqa: E731
    names = [f"{number}" for number in range(20)]
    held_out = [int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") < 2**63 for name in names]
    texts = [(name, ("b" if out else "a") * 8) for name, out in zip(names, held_out, strict=True)]
    meta = tokenize.write(tmp_path, tokenize.Tokenizer("t", 2, encode), iter(texts), 0.5)
    assert 0 < sum(held_out) < 20 and meta["bytes_per_token"] == 4
    assert tokenize.write(tmp_path, tokenize.Tokenizer("t", 2, encode), iter(texts[:1]), 0)["bytes_per_token"] in (1, 4)


def test_long_documents_come_few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenize, "MANY_CHARACTERS", 10)
    texts = [("a", "x" * 4), ("b", "x" * 7), ("c", "x" * 30), ("d", "x")]
    assert [len(batch) for batch in tokenize.batches(iter(texts))] == [2, 1, 1]
