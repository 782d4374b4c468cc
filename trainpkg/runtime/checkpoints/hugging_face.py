"""Our GPT as the GPT-2 of Hugging Face `transformers`: the same network, other names, some matrices turned over.

Both have layer norms before attention and MLP and one behind all, learned positions, query, key and value in one
matrix, and GELU (the exact one here). Theirs keeps four matrices per block as [in, out]; a head of its own needs
`tie_word_embeddings: false`. https://huggingface.co/docs/transformers/model_doc/gpt2
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from trainpkg.config import GPTModel

PLACES = {
    "embed": "wte", "position": "wpe", "norm": "ln_f", "norm1": "ln_1", "norm2": "ln_2", "attention.qkv": "attn.c_attn",
    "attention.out": "attn.c_proj", "mlp.0": "mlp.c_fc", "mlp.2": "mlp.c_proj",
}  # fmt: skip
TURNED = ("attention.qkv.weight", "attention.out.weight", "mlp.0.weight", "mlp.2.weight")
PREFIX, HEAD = "transformer.", "lm_head.weight"


def theirs(name: str) -> str:
    """The name of our weight there."""
    if name == "head.weight":
        return HEAD
    block = re.match(r"blocks\.(\d+)\.", name)
    place, _, kind = name[block.end() if block else 0 :].rpartition(".")
    return f"{PREFIX}{f'h.{block[1]}.' if block else ''}{PLACES[place]}.{kind}"


def turned(name: str) -> bool:
    """Whether our weight is [out, in] where theirs is [in, out]."""
    return name.endswith(TURNED)


def weights_there(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our weights by their names, as they have them."""
    return {theirs(name): (w.T if turned(name) else w).contiguous() for name, w in weights.items()}


def sources(ours: Iterable[str], found: Iterable[str]) -> dict[str, tuple[str, bool]]:
    """Our names -> (name in a file with the names `found`, whether to turn it over), for those that are there.

    The file is ours or one of GPT-2, whose own names may lack the prefix and whose head may be the embedding.
    """
    there = set(found)
    prefix = PREFIX if f"{PREFIX}wte.weight" in there else "" if "wte.weight" in there else None
    if prefix is None:
        return {name: (name, False) for name in ours if name in there}
    pairs = {}
    for name in ours:
        try:
            source = theirs(name).replace(PREFIX, prefix)
        except KeyError:  # no weight of a GPT
            continue
        source = f"{prefix}wte.weight" if source == HEAD and HEAD not in there else source
        if source in there:
            pairs[name] = (source, turned(name))
    return pairs


def not_read(found: Iterable[str], used: Iterable[str]) -> list[str]:
    """Names in a file that hold weights which nobody took; GPT-2's files also hold masks."""
    return sorted(name for name in set(found) - set(used) if not name.endswith(("attn.bias", "attn.masked_bias")))


def config_of(model: GPTModel, facts: Mapping[str, Any]) -> dict[str, Any]:
    """config.json of a GPT2LMHeadModel."""
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": model.vocabulary,
        "n_positions": model.context,
        "n_embd": model.dim,
        "n_layer": model.depth,
        "n_head": model.heads,
        "n_inner": 4 * model.dim,
        "activation_function": "gelu",
        "resid_pdrop": model.dropout,
        "embd_pdrop": model.dropout,
        "attn_pdrop": model.dropout,
        "layer_norm_epsilon": 1e-5,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "dtype": "float32",
        "trainpkg": dict(facts),
    }


def write_tokenizer(folder: Path, model: GPTModel, source: Path | None) -> bool:
    """tokenizer.json and its config: that of the data, or for bytes one of 256 tokens. False where neither is known."""
    if source is not None and source.is_file():
        text = source.read_text()
    elif model.vocabulary == 256:
        text = json.dumps(of_bytes())
    else:
        return False
    (folder / "tokenizer.json").write_text(text)
    facts = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": model.context}
    (folder / "tokenizer_config.json").write_text(json.dumps(facts, indent=1) + "\n")
    return True


def of_bytes() -> dict[str, Any]:
    """A tokenizer whose token n is byte n. Bytes have the printable names that GPT-2 gave them."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    names = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    by_bytes = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    model: dict[str, Any] = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None}
    model |= {"end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False}
    model |= {"vocab": {names[byte]: byte for byte in range(256)}, "merges": []}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": by_bytes,
        "post_processor": None,
        "decoder": by_bytes,
        "model": model,
    }
