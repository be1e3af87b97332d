"""Dream: a Qwen2-shaped block (grouped heads, biases on q, k and v) that predicts one position ahead.

The state at position i − 1 predicts token i, as in the autoregressive model that Dream was initialised from.
Its reference code counts positions from the first real token. Rotary attention depends on differences of
positions only, so this is not needed here.
"""

from __future__ import annotations

from dtm.models.families.base import STANDARD, UNSCALED, Family, HubConfig, standard
from dtm.models.shape import TransformerConfig


def read_config(config: HubConfig) -> TransformerConfig:
    """Read the native shape from a Dream configuration."""
    config.require_supported({**UNSCALED, "use_mrope": (False,)}, STANDARD)
    if config.values.get("eos_token_id") is None:
        # Text ends with the padding token unless the configuration says otherwise.
        ended = {**config.values, "eos_token_id": config.integer("pad_token_id")}
        config = HubConfig(ended, config.source)
    return TransformerConfig(**standard(config), qkv_bias=True, shift=1, family="dream")


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
    usual_mask=151666,
    models="Dream-v0-{Base,Instruct}-7B, DiffuCoder-7B, Dream-Coder-7B",
    limits="multimodal rotary positions (use_mrope) and sliding windows are refused",
)
