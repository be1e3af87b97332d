"""LLaDA-MoE (7B-A1B): full attention and experts; weights of the chosen experts are not renormalised.

``model_type`` is that of dense LLaDA; ``architectures`` tells them apart. The published code renormalises no
weights whatever ``norm_topk_prob`` says, and adds the bias of an expert to its weight too.
"""

from __future__ import annotations

from typing import Any

from dtm.errors import CheckpointError, require
from dtm.models.families.a2d import MODULES
from dtm.models.families.base import STANDARD, UNSCALED, Family, HubConfig, standard
from dtm.models.routing import Experts
from dtm.models.shape import TransformerConfig

_SUPPORTED: dict[str, tuple[Any, ...]] = {
    **UNSCALED,
    "attention_bias": (False,),
    "clip_qkv": (None,),
    "partial_rotary_factor": (1, None),
    # Read by the published code and not used: only neutral values are accepted.
    "moe_router_score_function": ("softmax", None),
    "routed_scaling_factor": (1.0, None),
    "router_num_group": (None, 1),
    "router_topk_group": (None, 1),
}
_READ = (
    *("dense_intermediate_size", "expert_intermediate_size", "shared_expert_intermediate_size"),
    *("num_experts", "num_experts_per_tok", "moe_layer_freq", "moe_router_enable_expert_bias"),
    "qk_layernorm",
)
_HARMLESS = ("norm_topk_prob", "output_router_logits", "router_aux_loss_coef")


def read_config(config: HubConfig) -> TransformerConfig:
    """Read the native shape from a configuration of LLaDA-MoE."""
    config.require_supported(_SUPPORTED, (*STANDARD, *_READ, *_HARMLESS))
    layers, sparse = config.full_layers(), config.numbers("moe_layer_freq")
    require(
        len(sparse) == layers and set(sparse) <= {0, 1},
        f"{config.source}: 'moe_layer_freq' is {sparse}; it must say 0 or 1 for each of {layers} layers",
        CheckpointError,
    )
    experts = Experts(
        count=config.integer("num_experts"),
        active=config.integer("num_experts_per_tok"),
        width=config.integer("expert_intermediate_size"),
        layers=tuple(number for number, has_experts in enumerate(sparse) if has_experts),
        renormalised=False,
        bias="weight" if config.flag("moe_router_enable_expert_bias", False) else "none",
        shared=config.optional("shared_expert_intermediate_size"),
    )
    inner = {**config.values, "intermediate_size": config.integer("dense_intermediate_size")}
    return TransformerConfig(
        **standard(HubConfig(inner, config.source)),
        experts=experts,
        qk_norm=config.flag("qk_layernorm", False),
        family="llada_moe",
    )


def write_config(shape: TransformerConfig) -> dict[str, Any]:
    """Make the hub's configuration of a shape."""
    experts = shape.experts
    if experts is None or shape.attention_block is not None or shape.shift or shape.rows != shape.vocab_size:
        raise CheckpointError(
            "this shape is not one of llada_moe: experts, attention, shift or rows of the embedding"
        )
    config = {
        "architectures": ["LLaDAMoEModelLM"],
        "model_type": "llada",
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.width,
        "dense_intermediate_size": shape.ffn,
        "expert_intermediate_size": experts.width,
        "shared_expert_intermediate_size": experts.shared,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads or shape.heads,
        "hidden_act": "silu",
        "rms_norm_eps": shape.norm_eps,
        "rope_theta": shape.rope_base,
        "qk_layernorm": shape.qk_norm,
        "num_experts": experts.count,
        "num_experts_per_tok": experts.active,
        "moe_layer_freq": [int(n in experts.layers) for n in range(shape.layers)],
        "moe_router_enable_expert_bias": experts.bias != "none",
        "tie_word_embeddings": shape.tied,
        "eos_token_id": shape.eos_id,
    }
    return config


LLADA_MOE = Family(
    name="llada_moe",
    model_type="llada",
    architectures=("LLaDAMoEModelLM", "LLaDAMoEModel"),
    read=read_config,
    modules={
        **MODULES,
        "blocks.*.experts.router": "model.layers.*.mlp.gate",
        "blocks.*.experts.bias": "model.layers.*.mlp.expert_bias",
        "blocks.*.experts.gate": "model.layers.*.mlp.experts.*.gate_proj",
        "blocks.*.experts.up": "model.layers.*.mlp.experts.*.up_proj",
        "blocks.*.experts.down": "model.layers.*.mlp.experts.*.down_proj",
        "blocks.*.shared.gate": "model.layers.*.shared_expert.gate_proj",
        "blocks.*.shared.up": "model.layers.*.shared_expert.up_proj",
        "blocks.*.shared.down": "model.layers.*.shared_expert.down_proj",
    },
    write=write_config,
    leaves_out=True,
    attention="full",
    usual_mask=156895,
    models="inclusionAI/LLaDA-MoE-7B-A1B-{Base,Instruct}",
    limits="adapters leave routers and experts alone; routers are never trained",
)
