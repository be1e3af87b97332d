"""Llama, Qwen2 and Qwen3, and the masked diffusion models that are made from them (A2D).

A model and its adaptation have the same weights and configuration keys. They differ in attention and shift:

    llama, qwen2, qwen3              causal; the state at position i − 1 predicts token i
    a2d-llama, a2d-qwen2, a2d-qwen3  full or block attention; the state at i predicts token i

The configurations state neither a mask token nor the attention of the adapted models; see `settings`.
"""

from __future__ import annotations

import functools
from typing import Any

from dtm.errors import CheckpointError, require
from dtm.models.families.base import STANDARD, UNSCALED, Family, HubConfig, standard, written
from dtm.models.families.dream import DREAM
from dtm.models.shape import TransformerConfig

PREFIX = "a2d-"
"""Prefix of the families of masked diffusion models."""
SOURCES = ("llama", "qwen2", "qwen3")
"""Families of autoregressive models."""
_OF_SOURCE: dict[str, dict[str, tuple[Any, ...]]] = {
    "llama": {
        "attention_bias": (False,),  # biases would be on the output projection too
        "mlp_bias": (False,),
        "rope_interleaved": (False,),
        "pretraining_tp": (1,),
    },
    "qwen2": {},
    "qwen3": {"attention_bias": (False,)},
}
"""Further keys of each source, and their supported values."""
_HARMLESS = ("is_llama_config", "transformers.js_config")
_ARCHITECTURES = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}
_PUBLISHED = {
    "a2d-llama": "anything that dllm's convert.py or dtm adapt makes from Llama or SmolLM2",
    "a2d-qwen2": "dllm-hub/Qwen2.5-Coder-0.5B-Instruct-diffusion-{mdlm,bd3lm}-v0.1",
    "a2d-qwen3": "dllm-hub/Qwen3-0.6B-diffusion-{mdlm,bd3lm}-v0.1, divelab/OPDLM-*",
}
_ADDED = "<|mask|>, added after the last token of the source,"
_MASKS: dict[str, int | str] = {"a2d-llama": _ADDED, "a2d-qwen2": _ADDED, "a2d-qwen3": 151669}
MODULES = {
    **DREAM.modules,
    "blocks.*.attention.q_norm": "model.layers.*.self_attn.q_norm",
    "blocks.*.attention.k_norm": "model.layers.*.self_attn.k_norm",
}
"""Names of Qwen2 and of the norms that Qwen3 adds."""


def read_config(config: HubConfig, family: str) -> TransformerConfig:
    """Read the native shape from a configuration of one of these families."""
    source = family.removeprefix(PREFIX)
    config.require_supported({**UNSCALED, **_OF_SOURCE[source]}, (*STANDARD, *_HARMLESS))
    # Qwen3's own code takes 128 where the width of a head is absent; in the others it follows from the width.
    head_width = config.optional("head_dim") or (128 if source == "qwen3" else None)
    return TransformerConfig(
        **standard(config) | {"head_width": head_width},
        qkv_bias=source == "qwen2",
        qk_norm=source == "qwen3",
        shift=int(source == family),
        attention_block=1 if source == family else None,
        family=family,
    )


def write_config(shape: TransformerConfig) -> dict[str, Any]:
    """Make the hub's configuration of a shape, with the keys that transformers 4 and 5 both read."""
    source = shape.family.removeprefix(PREFIX)
    name = _ARCHITECTURES[source]
    class_name = f"{name}ForCausalLM" if source == shape.family else f"A2D{name}LMHeadModel"
    require(
        (shape.qkv_bias, shape.qk_norm) == (source == "qwen2", source == "qwen3")
        and shape.shift == int(source == shape.family)
        and shape.rows == shape.vocab_size,
        f"this shape is not one of {shape.family}: biases, norms of q and k, shift or rows of the embedding",
        CheckpointError,
    )
    config = {"architectures": [class_name], "model_type": shape.family, **written(shape)}
    if source != "qwen2" or shape.head_width is not None:  # Qwen2's configuration has no such key
        config["head_dim"] = shape.head_size
    if source != "qwen2":
        config["attention_bias"] = False
    return config


def _family(name: str) -> Family:
    return Family(
        name=name,
        model_type=name,
        read=functools.partial(read_config, family=name),
        modules=MODULES,
        write=write_config,
        leaves_out=True,
        attention="either" if name.startswith(PREFIX) else "causal",
        usual_mask=_MASKS.get(name),
        usual_block=32 if name.startswith(PREFIX) else None,
        models=_PUBLISHED.get(name, "autoregressive sources, for dtm adapt"),
        limits="scaled rotary positions and sliding windows are refused",
    )


A2D = tuple(_family(PREFIX + source) for source in SOURCES)
AUTOREGRESSIVE = tuple(_family(source) for source in SOURCES)
