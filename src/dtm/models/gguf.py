"""Llama, Qwen2 and Qwen3 models from GGUF files (llama.cpp): configuration and weights.

Quantised tensors are dequantised with the functions of the package `gguf`. The converter of llama.cpp
permutes the rows of q and k of the architecture ``llama``, for its interleaved rotation; `unpermuted` undoes
it. Metadata keys, tensor names and shapes are strict: an unknown one is an error that names it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Shaped

from dtm.errors import CheckpointError, ConfigError, require
from dtm.models.families.a2d import SOURCES
from dtm.models.families.base import renamed
from dtm.models.shape import TransformerConfig
from dtm.models.storage import without_memory
from dtm.models.tokenizers import no_transformers
from dtm.models.transformer import Transformer
from dtm.models.weights import place, require_same_names

_MODULES = {
    "embedding": "token_embd",
    "norm": "output_norm",
    "unembedding": "output",
    "blocks.*.attention_norm": "blk.*.attn_norm",
    "blocks.*.attention.q": "blk.*.attn_q",
    "blocks.*.attention.k": "blk.*.attn_k",
    "blocks.*.attention.v": "blk.*.attn_v",
    "blocks.*.attention.out": "blk.*.attn_output",
    "blocks.*.attention.q_norm": "blk.*.attn_q_norm",
    "blocks.*.attention.k_norm": "blk.*.attn_k_norm",
    "blocks.*.ffn_norm": "blk.*.ffn_norm",
    "blocks.*.gate": "blk.*.ffn_gate",
    "blocks.*.up": "blk.*.ffn_up",
    "blocks.*.down": "blk.*.ffn_down",
}
_READ = (
    *("block_count", "embedding_length", "feed_forward_length", "vocab_size", "context_length"),
    *("attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length"),
    *("attention.layer_norm_rms_epsilon", "rope.freq_base", "rope.dimension_count"),
)
"""Keys after the prefix of the architecture; others could change what the model computes."""


def load_gguf(
    path: Path,
    *,
    mask_id: int,
    eos_id: int,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
) -> Transformer:
    """Load the autoregressive model of a GGUF file; the mask token is the caller's choice."""
    reader = _reader(path)
    shape = _shape(reader, path, mask_id, eos_id)
    model = without_memory(shape)
    found = {tensor.name: tensor for tensor in reader.tensors}
    wanted = {name: tuple(value.shape) for name, value in model.named_parameters()}
    expected = {renamed(name, _MODULES): name for name in wanted}
    require_same_names(expected, found, path)
    for stored, native in expected.items():
        tensor = found[stored]
        size = tuple(int(side) for side in reversed(tensor.shape))
        message = f"{path}: {stored!r} is {size}, the metadata says {wanted[native]}"
        require(size == wanted[native], message, CheckpointError)
        place(
            model, native, torch.from_numpy(_values(tensor, native, shape, path)), dtype, torch.device(device)
        )
    return model


def unpermuted(weight: Shaped[np.ndarray, "N ..."], heads: int) -> Shaped[np.ndarray, "N ..."]:
    """Rows of q or k in half-split order, from llama.cpp's interleaved order within each head.

    >>> unpermuted(np.arange(8), heads=2)
    array([0, 2, 1, 3, 4, 6, 5, 7])
    """
    pairs = weight.shape[0] // heads // 2
    return weight.reshape(heads, pairs, 2, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def _values(tensor: Any, native: str, shape: TransformerConfig, path: Path) -> Any:
    """A tensor in float32, with the rows of q and k in the order of `transformers`."""
    from gguf.quants import dequantize

    try:
        values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
    except (NotImplementedError, KeyError, ValueError) as problem:
        raise CheckpointError(f"{path}: {tensor.name!r} cannot be dequantised: {problem}") from None
    heads = {"attention.q": shape.heads, "attention.k": shape.kv_heads or shape.heads}
    count = heads.get(".".join(native.split(".")[2:4]))
    return unpermuted(values, count) if shape.family == "llama" and count else values


def _shape(reader: Any, path: Path, mask_id: int, eos_id: int) -> TransformerConfig:
    """The shape that the metadata describe."""
    metadata = {name: field.contents() for name, field in reader.fields.items() if "." in name}
    family = metadata.get("general.architecture")
    require(
        family in SOURCES,
        f"{path}: the architecture is {family!r}; it can only be {', '.join(SOURCES)}",
        CheckpointError,
    )
    own = {
        name.removeprefix(f"{family}."): value
        for name, value in metadata.items()
        if name.startswith(f"{family}.")
    }
    for name in own:
        known = f"{path}: {family}.{name} is {own[name]!r}; this key is unknown to this loader"
        require(name in _READ, known, CheckpointError)
    rows = next((int(tensor.shape[-1]) for tensor in reader.tensors if tensor.name == "token_embd.weight"), 0)
    stated = own.get("vocab_size", rows)
    require(stated == rows, f"{path}: vocab_size {stated}, and {rows} rows of token_embd", CheckpointError)
    width, heads = _integer(own, "embedding_length", path), _integer(own, "attention.head_count", path)
    head_width = own.get("attention.key_length") or width // heads
    for name in ("attention.value_length", "rope.dimension_count"):
        value = own.get(name, head_width)
        message = f"{path}: {name} is {value}; it can only be the width of a head, {head_width}"
        require(value == head_width, message, CheckpointError)
    try:
        return TransformerConfig(
            vocab_size=rows,
            mask_id=mask_id,
            eos_id=eos_id,
            width=width,
            layers=_integer(own, "block_count", path),
            heads=heads,
            kv_heads=own.get("attention.head_count_kv"),
            head_width=None if head_width * heads == width else head_width,
            ffn=_integer(own, "feed_forward_length", path),
            rope_base=_number(own, "rope.freq_base", path),
            norm_eps=_number(own, "attention.layer_norm_rms_epsilon", path),
            qkv_bias=family == "qwen2",
            qk_norm=family == "qwen3",
            tied=all(tensor.name != "output.weight" for tensor in reader.tensors),
            shift=1,
            attention_block=1,
            family=str(family),
        )
    except ConfigError as problem:  # the values do not make a shape
        raise CheckpointError(f"{path}: {problem}") from None


def _integer(values: Mapping[str, Any], name: str, path: Path) -> int:
    value = values.get(name)
    if not isinstance(value, int):
        raise CheckpointError(f"{path}: {name} is {value!r}; it must be one integer")
    return value


def _number(values: Mapping[str, Any], name: str, path: Path) -> float:
    """A number that the file holds in float32, as the shortest decimal that rounds to it (1e-05)."""
    value = values.get(name)
    if not isinstance(value, int | float):
        raise CheckpointError(f"{path}: {name} is {value!r}; it must be a number")
    return float(str(np.float32(value)))


def load_gguf_tokenizer(path: Path) -> Any:
    """The tokenizer in a GGUF file, with its chat template; `transformers` converts it.

    The conversion may lose which token ends a text, so it is read from the file.
    """
    reader = _reader(path)  # reports a missing package or a damaged file
    try:
        from transformers import AutoTokenizer
    except ImportError:
        raise no_transformers() from None
    tokenizer = AutoTokenizer.from_pretrained(
        str(path.parent), gguf_file=path.name, local_files_only=True, clean_up_tokenization_spaces=False
    )
    end = reader.get_field("tokenizer.ggml.eos_token_id")
    if end is not None:
        tokenizer.eos_token = tokenizer.convert_ids_to_tokens(int(end.contents()))
    return tokenizer


def _reader(path: Path) -> Any:
    require(path.is_file(), f"there is no file {path}", CheckpointError)
    try:
        from gguf import GGUFReader
    except ImportError:
        raise ConfigError(f"{path} needs the package gguf: pip install gguf") from None
    try:
        return GGUFReader(path)
    except (ValueError, OSError, IndexError) as problem:
        raise CheckpointError(f"{path} is not a readable GGUF file: {problem}") from None
