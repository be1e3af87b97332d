"""LLaDA (8B base and instruct, 1.5): a Llama block with its own module names.

``ff_proj`` is the gate. ``ff_out`` is the down-projection inside a block, and the head outside.
"""

from __future__ import annotations

from dtm.errors import CheckpointError, require
from dtm.models.families.base import Family, HubConfig
from dtm.models.shape import TransformerConfig

_SUPPORTED = {
    "block_type": ("llama",),
    "activation_type": ("silu",),
    "layer_norm_type": ("rms",),
    "layer_norm_with_affine": (True,),
    "bias_for_layer_norm": (False, None),
    "attention_layer_norm": (False,),
    "rope": (True,),
    "alibi": (False,),
    "include_bias": (False,),
    "input_emb_norm": (False,),
    "scale_logits": (False,),
    "block_group_size": (1,),
    "clip_qkv": (None,),
    "attention_dropout": (0.0,),
    "embedding_dropout": (0.0,),
    "residual_dropout": (0.0,),
}
_STATED = ("block_type", "activation_type", "layer_norm_type", "rope", "weight_tying")
"""Required keys: their defaults in LLaDA's own code differ from the published models."""
_READ = (
    *(
        "d_model",
        "n_layers",
        "n_heads",
        "n_kv_heads",
        "multi_query_attention",
        "mlp_hidden_size",
        "mlp_ratio",
    ),
    *("vocab_size", "embedding_size", "weight_tying", "include_qkv_bias", "rope_theta", "rms_norm_eps"),
    *("mask_token_id", "eos_token_id"),
)
_HARMLESS = (
    *("alibi_bias_max", "attention_layer_norm_with_affine", "flash_attention", "max_sequence_length"),
    *("init_cutoff_factor", "init_device", "init_fn", "init_std", "precision"),
    "rope_full_precision",  # rotations are always computed in float32 here
)


def read_config(config: HubConfig) -> TransformerConfig:
    """Read the native shape from a LLaDA configuration."""
    for key in _STATED:
        require(key in config.values, f"{config.source}: {key!r} is missing", CheckpointError)
    config.require_supported(_SUPPORTED, (*_READ, *_HARMLESS))
    width = config.integer("d_model")
    return TransformerConfig(
        vocab_size=config.integer("vocab_size"),
        mask_id=config.integer("mask_token_id"),
        eos_id=config.integer("eos_token_id"),
        width=width,
        layers=config.integer("n_layers"),
        heads=config.integer("n_heads"),
        kv_heads=_kv_heads(config),
        ffn=config.optional("mlp_hidden_size") or round(config.number("mlp_ratio") * width),
        rope_base=config.number("rope_theta"),
        norm_eps=config.number("rms_norm_eps"),
        qkv_bias=config.flag("include_qkv_bias", False),
        tied=config.flag("weight_tying", True),
        embedding_size=config.optional("embedding_size"),
        family="llada",
    )


def _kv_heads(config: HubConfig) -> int:
    """Key-value heads, from an old key and a new one, which must agree."""
    heads, stated = config.integer("n_heads"), config.optional("n_kv_heads")
    if config.values.get("multi_query_attention") is None:
        return stated or heads
    implied = 1 if config.flag("multi_query_attention", False) else heads
    require(
        stated in (None, implied),
        f"{config.source}: 'multi_query_attention' means {implied} key-value heads, 'n_kv_heads' is {stated}",
        CheckpointError,
    )
    return implied


LLADA = Family(
    name="llada",
    model_type="llada",
    read=read_config,
    modules={
        "embedding": "model.transformer.wte",
        "norm": "model.transformer.ln_f",
        "unembedding": "model.transformer.ff_out",
        "blocks.*.attention_norm": "model.transformer.blocks.*.attn_norm",
        "blocks.*.attention.q": "model.transformer.blocks.*.q_proj",
        "blocks.*.attention.k": "model.transformer.blocks.*.k_proj",
        "blocks.*.attention.v": "model.transformer.blocks.*.v_proj",
        "blocks.*.attention.out": "model.transformer.blocks.*.attn_out",
        "blocks.*.ffn_norm": "model.transformer.blocks.*.ff_norm",
        "blocks.*.gate": "model.transformer.blocks.*.ff_proj",
        "blocks.*.up": "model.transformer.blocks.*.up_proj",
        "blocks.*.down": "model.transformer.blocks.*.ff_out",
    },
    usual_mask=126336,
    models="GSAI-ML/LLaDA-8B-{Base,Instruct}, LLaDA-1.5",
    limits="biases, ALiBi and clipped queries, which no published model has, are refused",
)
