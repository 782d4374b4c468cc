"""The subcommand `tokenize`: text to the token files that `data.name = tokens` maps into memory.

A document goes to the training or the held-out part by a hash of its name, so that the parts stay what they are when
documents come in. Bytes, or the tokens of a Hugging Face tokenizer's file; nothing is downloaded. No torch here.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from trainpkg.errors import UserError

PARTS = {False: "train", True: "validation"}
MANY, MANY_CHARACTERS = 1000, 16_000_000  # of documents at once: the tokenizer spreads them over the CPUs
TEXT_SUFFIXES = (".txt", ".md", ".rst", ".py", ".jsonl", ".json", ".html", ".csv", ".tex")
Encode = Callable[[list[str]], list[Any]]


@dataclass(frozen=True)
class Tokenizer:
    """`encode`: texts to lists of numbers below `vocabulary`; `end` follows each document."""

    name: str
    vocabulary: int
    encode: Encode
    end: int | None = None

    @property
    def dtype(self) -> str:
        """The smallest type that holds all tokens."""
        return next(kind for kind in ("uint8", "uint16", "uint32") if self.vocabulary - 1 <= np.iinfo(kind).max)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "A file is a document; of a .jsonl file each line is one, its text under --key. Folders are searched for text "
        "files by their suffix. The result is what `data: {name: tokens, path: OUT}` reads."
    )
    parser.add_argument(
        "texts", nargs="+", type=Path, metavar="TEXT", help="text files, .jsonl files, or folders of them"
    )
    parser.add_argument(
        "--out", type=Path, required=True, help="the new folder, of train.bin, validation.bin, meta.json"
    )
    parser.add_argument("--tokenizer", type=Path, help="tokenizer.json of Hugging Face; left out: bytes are tokens")
    parser.add_argument(
        "--end", help="the tokenizer's token between documents (default: <|endoftext|> where it has one)"
    )
    parser.add_argument("--key", default="text", help="where a line of .jsonl has its text (default: text)")
    parser.add_argument(
        "--validation-fraction", type=float, default=0.05, help="share of the documents held out (default: 0.05)"
    )


def main(args: argparse.Namespace) -> int:
    """Write the folder, whole or not at all."""
    if args.out.exists():
        raise UserError(f"--out {args.out} is there already: name a new folder, or delete it")
    if not 0 <= args.validation_fraction < 1:
        raise UserError(f"--validation-fraction {args.validation_fraction}: expected at least 0 and less than 1")
    tokenizer = by_bytes() if args.tokenizer is None else of_file(args.tokenizer, args.end)
    waiting = args.out.with_name(f".{args.out.name}.tmp")
    shutil.rmtree(waiting, ignore_errors=True)
    waiting.mkdir(parents=True)
    meta = write(waiting, tokenizer, documents(args.texts, args.key), args.validation_fraction)
    if args.tokenizer is not None:
        shutil.copyfile(args.tokenizer, waiting / "tokenizer.json")
    (waiting / "meta.json").write_text(json.dumps(meta, indent=1) + "\n")
    waiting.rename(args.out)
    print(f"{args.out}: " + ", ".join(f"{meta['num_tokens'][part]} tokens in {part}.bin" for part in PARTS.values()))
    print(f"data: {{name: tokens, path: {args.out}}}   model: {{name: gpt, vocabulary: {tokenizer.vocabulary}, ...}}")
    return 0


def write(folder: Path, tokenizer: Tokenizer, texts: Iterator[tuple[str, str]], fraction: float) -> dict[str, Any]:
    """Both files, and what meta.json says. UserError where there is no text."""
    counts, num_bytes = dict.fromkeys(PARTS.values(), 0), dict.fromkeys(PARTS.values(), 0)
    dtype = np.dtype(tokenizer.dtype).newbyteorder("<")
    ending = [] if tokenizer.end is None else [tokenizer.end]
    with ExitStack() as stack:
        files: dict[str, BinaryIO] = {
            part: stack.enter_context((folder / f"{part}.bin").open("wb")) for part in PARTS.values()
        }
        for batch in batches(texts):
            for (name, text), numbers in zip(batch, tokenizer.encode([text for _, text in batch]), strict=True):
                digest = hashlib.sha256(name.encode()).digest()
                part = PARTS[int.from_bytes(digest[:8], "big") < fraction * 2**64]
                found = np.concatenate([np.asarray(numbers), np.asarray(ending)]).astype(dtype)
                files[part].write(found.tobytes())
                counts[part] += len(found)
                num_bytes[part] += len(text.encode())
    if not counts["train"]:
        raise UserError(
            f"--validation-fraction {fraction} holds out all documents that have text: give more of them, or a smaller "
            "fraction; 0 holds out the end of the text"
            if counts["validation"]
            else "no text in what was named: nothing to write"
        )
    judged = "validation" if counts["validation"] else "train"  # what bits per byte are told of
    if not counts["validation"]:
        (folder / "validation.bin").unlink()  # the end of train.bin is held out then
    return {
        "dtype": tokenizer.dtype,
        "vocabulary": tokenizer.vocabulary,
        "tokenizer": tokenizer.name,
        "num_tokens": counts,
        "bytes_per_token": num_bytes[judged] / counts[judged],
    }


def batches(texts: Iterator[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    batch: list[tuple[str, str]] = []
    size = 0
    for document in texts:
        batch.append(document)
        size += len(document[1])
        if len(batch) == MANY or size >= MANY_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def documents(paths: list[Path], key: str) -> Iterator[tuple[str, str]]:
    """(name, text) of each, in the order of names; a file's name is relative to what was named."""
    for root in paths:
        if not root.exists():
            raise UserError(f"{root}: there is no such file or folder")
        for path in sorted(files_in(root)):
            name = path.name if path == root else path.relative_to(root).as_posix()
            try:
                if path.suffix == ".jsonl":
                    with path.open(encoding="utf-8") as lines:
                        for number, line in enumerate(lines, 1):
                            text = json.loads(line)[key]
                            if not isinstance(text, str):
                                raise TypeError(f"{text!r} is no text")
                            yield f"{name}:{number}", text
                else:
                    yield name, path.read_text(encoding="utf-8")
            except UnicodeDecodeError as error:
                raise UserError(f"{path} is no UTF-8 text: {error}") from error
            except (KeyError, TypeError, ValueError) as error:
                raise UserError(f"{path}:{number}: no JSON object with a text under {key!r}: {error!r}") from error


def files_in(root: Path) -> Iterator[Path]:
    if root.is_file():
        yield root
        return
    for folder, _, names in os.walk(root):
        yield from (Path(folder, name) for name in names if name.endswith(TEXT_SUFFIXES))


def by_bytes() -> Tokenizer:
    """256 tokens; documents follow each other without a mark."""
    return Tokenizer("bytes", 256, lambda texts: [np.frombuffer(text.encode(), np.uint8) for text in texts])


def of_file(path: Path, end: str | None) -> Tokenizer:
    """Of a tokenizer.json. UserError without the library, for another file, and for an end that it does not know."""
    try:
        import tokenizers
    except ImportError as error:
        raise UserError(f"--tokenizer needs tokenizers ({error}): pip install 'trainpkg[tokenizers]'") from error
    try:
        found = tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises Exception itself
        raise UserError(f"--tokenizer {path} is no tokenizer.json: {error}") from error
    number = found.token_to_id(end or "<|endoftext|>")
    if end is not None and number is None:
        raise UserError(f"--end {end!r}: the vocabulary of {path} has no such token")
    size = found.get_vocab_size(with_added_tokens=True)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:16]

    def encode(texts: list[str]) -> list[Any]:
        return [one.ids for one in found.encode_batch(texts, add_special_tokens=False)]

    return Tokenizer(f"{path.name} {digest}", size, encode, number)
