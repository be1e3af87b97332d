"""Dream: a Qwen2-shaped block (grouped heads, biases on q, k and v) that predicts one position ahead.

The state at position i − 1 predicts token i, as in the autoregressive model that Dream was initialised from.
Its reference code counts positions from the first real token. Rotary attention depends on differences of
positions only, so this is not needed here.
"""

from __future__ import annotations

from dtm.models.families.base import Family, HubConfig
from dtm.models.shape import TransformerConfig

_SUPPORTED = {
    "hidden_act": ("silu",),
    "rope_scaling": (None,),
    "use_sliding_window": (False,),
    "use_mrope": (False,),
    "attention_dropout": (0.0,),
}
_READ = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "rms_norm_eps", "rope_theta", "tie_word_embeddings"),
    *("mask_token_id", "eos_token_id", "pad_token_id"),
)
_HARMLESS = (
    *("max_position_embeddings", "max_window_layers"),
    "sliding_window",  # read only where use_sliding_window is true
)


def read_config(config: HubConfig) -> TransformerConfig:
    """Read the native shape from a Dream configuration."""
    config.require_supported(_SUPPORTED, (*_READ, *_HARMLESS))
    # Text ends with the padding token unless the configuration says otherwise.
    end = "pad_token_id" if config.values.get("eos_token_id") is None else "eos_token_id"
    return TransformerConfig(
        vocab_size=config.integer("vocab_size"),
        mask_id=config.integer("mask_token_id"),
        eos_id=config.integer(end),
        width=config.integer("hidden_size"),
        layers=config.integer("num_hidden_layers"),
        heads=config.integer("num_attention_heads"),
        kv_heads=config.optional("num_key_value_heads"),
        head_width=config.optional("head_dim"),
        ffn=config.integer("intermediate_size"),
        rope_base=config.number("rope_theta"),
        norm_eps=config.number("rms_norm_eps"),
        qkv_bias=True,
        tied=config.flag("tie_word_embeddings", False),
        shift=1,
        family="dream",
    )


DREAM = Family(
    name="dream",
    model_type="Dream",
    read=read_config,
    modules={
        "embedding": "model.embed_tokens",
        "norm": "model.norm",
        "unembedding": "lm_head",
        "blocks.*.attention_norm": "model.layers.*.input_layernorm",
        "blocks.*.attention.q": "model.layers.*.self_attn.q_proj",
        "blocks.*.attention.k": "model.layers.*.self_attn.k_proj",
        "blocks.*.attention.v": "model.layers.*.self_attn.v_proj",
        "blocks.*.attention.out": "model.layers.*.self_attn.o_proj",
        "blocks.*.ffn_norm": "model.layers.*.post_attention_layernorm",
        "blocks.*.gate": "model.layers.*.mlp.gate_proj",
        "blocks.*.up": "model.layers.*.mlp.up_proj",
        "blocks.*.down": "model.layers.*.mlp.down_proj",
    },
)
