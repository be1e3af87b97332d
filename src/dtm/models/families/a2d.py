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
from dtm.models.families.base import Family, HubConfig
from dtm.models.families.dream import DREAM
from dtm.models.shape import TransformerConfig

PREFIX = "a2d-"
"""Prefix of the families of masked diffusion models."""
SOURCES = ("llama", "qwen2", "qwen3")
"""Families of autoregressive models."""
_SUPPORTED: dict[str, tuple[Any, ...]] = {
    "hidden_act": ("silu",),
    "rope_scaling": (None,),
    "attention_dropout": (0.0,),
}
_OF_SOURCE: dict[str, dict[str, tuple[Any, ...]]] = {
    "llama": {
        "attention_bias": (False,),  # biases would be on the output projection too
        "mlp_bias": (False,),
        "rope_interleaved": (False,),
        "pretraining_tp": (1,),
    },
    "qwen2": {"use_sliding_window": (False,)},
    "qwen3": {"use_sliding_window": (False,), "attention_bias": (False,)},
}
"""Further keys of each source, and their supported values."""
_READ = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "rms_norm_eps", "rope_theta", "rope_parameters"),
    *("tie_word_embeddings", "layer_types", "mask_token_id", "eos_token_id"),
)
_HARMLESS = (
    *("max_position_embeddings", "max_window_layers", "is_llama_config", "transformers.js_config"),
    "sliding_window",  # read only where use_sliding_window is true
)
_ARCHITECTURES = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3"}
_MODULES = {
    **DREAM.modules,
    "blocks.*.attention.q_norm": "model.layers.*.self_attn.q_norm",
    "blocks.*.attention.k_norm": "model.layers.*.self_attn.k_norm",
}


def read_config(config: HubConfig, family: str) -> TransformerConfig:
    """Read the native shape from a configuration of one of these families."""
    source = family.removeprefix(PREFIX)
    config.require_supported(_SUPPORTED | _OF_SOURCE[source], (*_READ, *_HARMLESS))
    layers = config.integer("num_hidden_layers")
    kinds = config.values.get("layer_types")
    require(
        kinds is None or kinds == ["full_attention"] * layers,
        f"{config.source}: 'layer_types' is {kinds!r}; all {layers} layers must have 'full_attention'",
        CheckpointError,
    )
    # Qwen3's own code takes 128 where the width of a head is absent; in the others it follows from the width.
    head_width = config.optional("head_dim") or (128 if source == "qwen3" else None)
    return TransformerConfig(
        vocab_size=config.integer("vocab_size"),
        mask_id=config.integer("mask_token_id"),
        eos_id=config.first_integer("eos_token_id"),
        width=config.integer("hidden_size"),
        layers=layers,
        heads=config.integer("num_attention_heads"),
        kv_heads=config.optional("num_key_value_heads"),
        head_width=head_width,
        ffn=config.integer("intermediate_size"),
        rope_base=_rope_base(config),
        norm_eps=config.number("rms_norm_eps"),
        qkv_bias=source == "qwen2",
        qk_norm=source == "qwen3",
        tied=config.flag("tie_word_embeddings", False),
        shift=int(source == family),
        attention_block=1 if source == family else None,
        family=family,
    )


def _rope_base(config: HubConfig) -> float:
    """Base of the rotary frequencies, from the key of transformers 4 or that of 5, which must agree."""
    stated = config.values.get("rope_parameters")
    if stated is None:
        return config.number("rope_theta")
    require(
        isinstance(stated, dict)
        and stated.keys() <= {"rope_theta", "rope_type"}
        and stated.get("rope_type", "default") == "default",
        f"{config.source}: 'rope_parameters' is {stated!r}; it can only have a 'rope_theta' and the "
        "'rope_type' 'default'",
        CheckpointError,
    )
    base = HubConfig(stated, f"{config.source}, rope_parameters").number("rope_theta")
    require(
        config.values.get("rope_theta") is None or config.number("rope_theta") == base,
        f"{config.source}: 'rope_theta' is {config.values.get('rope_theta')!r}, and {base!r} in "
        "'rope_parameters'",
        CheckpointError,
    )
    return base


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
    config: dict[str, Any] = {
        "architectures": [class_name],
        "model_type": shape.family,
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.width,
        "intermediate_size": shape.ffn,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads or shape.heads,
        "hidden_act": "silu",
        "rms_norm_eps": shape.norm_eps,
        "rope_theta": shape.rope_base,
        "rope_scaling": None,
        "tie_word_embeddings": shape.tied,
        "eos_token_id": shape.eos_id,
    }
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
        modules=_MODULES,
        write=write_config,
        leaves_out=True,
    )


A2D = tuple(_family(PREFIX + source) for source in SOURCES)
AUTOREGRESSIVE = tuple(_family(source) for source in SOURCES)
