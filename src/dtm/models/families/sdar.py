"""SDAR and TraDo: block diffusion models made from Qwen3, dense or with experts; names are those of Qwen3.

Blocks are counted from a row's first token. The hub's configurations state neither the block size nor the
mask token; copies for training do, as ``block_size`` and ``mask_token_id``.
"""

from __future__ import annotations

from typing import Any

from dtm.errors import CheckpointError, require
from dtm.models.families.a2d import MODULES
from dtm.models.families.base import STANDARD, UNSCALED, Family, HubConfig, standard, written
from dtm.models.routing import Experts
from dtm.models.shape import TransformerConfig

_SUPPORTED = {**UNSCALED, "attention_bias": (False,)}
_HARMLESS = (
    *("debug", "ep_size", "fuse_cross_entropy", "micro_forward", "skip_checkpoint", "use_deepep"),
    *("output_router_logits", "router_aux_loss_coef"),
)
_EXPERTS = (
    *("num_experts", "num_experts_per_tok", "moe_intermediate_size", "norm_topk_prob"),
    *("decoder_sparse_step", "mlp_only_layers"),
)


def read_config(config: HubConfig) -> TransformerConfig:
    """Read the native shape from a configuration of SDAR."""
    return _read(config, "sdar", None)


def read_experts(config: HubConfig) -> TransformerConfig:
    """Read the native shape from a configuration of SDAR with experts; it routes as Qwen3-MoE does."""
    layers, step = config.full_layers(), config.optional("decoder_sparse_step") or 1
    dense = config.numbers("mlp_only_layers") if config.values.get("mlp_only_layers") else []
    experts = Experts(
        count=config.integer("num_experts"),
        active=config.integer("num_experts_per_tok"),
        width=config.integer("moe_intermediate_size"),
        layers=tuple(n for n in range(layers) if n not in dense and (n + 1) % step == 0),
        renormalised=config.flag("norm_topk_prob", False),
    )
    return _read(config, "sdar_moe", experts)


def _read(config: HubConfig, family: str, experts: Experts | None) -> TransformerConfig:
    config.require_supported(
        _SUPPORTED, (*STANDARD, "block_size", *_HARMLESS, *(_EXPERTS if experts is not None else ()))
    )
    return TransformerConfig(
        **standard(config) | {"head_width": config.optional("head_dim") or 128},
        experts=experts,
        qk_norm=True,
        attention_block=config.optional("block_size"),
        block_origin="token",
        family=family,
    )


def write_config(shape: TransformerConfig) -> dict[str, Any]:
    """Make the hub's configuration of a shape."""
    require(
        shape.qk_norm and not shape.qkv_bias and shape.shift == 0 and shape.rows == shape.vocab_size,
        f"this shape is not one of {shape.family}: biases, norms of q and k, shift or rows of the embedding",
        CheckpointError,
    )
    config = {
        "architectures": ["SDARForCausalLM" if shape.experts is None else "SDARMoeForCausalLM"],
        "model_type": shape.family,
        **written(shape),
        "head_dim": shape.head_size,
        "attention_bias": False,
        "mask_token_id": shape.mask_id,
        "block_size": shape.attention_block,
    }
    experts = shape.experts
    if experts is None:
        return config
    return config | {
        "num_experts": experts.count,
        "num_experts_per_tok": experts.active,
        "moe_intermediate_size": experts.width,
        "norm_topk_prob": experts.renormalised,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [n for n in range(shape.layers) if n not in experts.layers],
    }


SDAR = Family(
    name="sdar",
    model_type="sdar",
    read=read_config,
    modules=MODULES,
    write=write_config,
    leaves_out=True,
    attention="block",
    usual_mask=151669,
    usual_block=4,
    models="SDAR-{1.7B,4B,8B}-Chat, TraDo",
    limits="sliding windows and scaled rotary positions are refused",
)
SDAR_MOE = Family(
    name="sdar_moe",
    model_type="sdar_moe",
    read=read_experts,
    modules={
        **MODULES,
        "blocks.*.experts.router": "model.layers.*.mlp.gate",
        "blocks.*.experts.gate": "model.layers.*.mlp.experts.*.gate_proj",
        "blocks.*.experts.up": "model.layers.*.mlp.experts.*.up_proj",
        "blocks.*.experts.down": "model.layers.*.mlp.experts.*.down_proj",
    },
    write=write_config,
    leaves_out=True,
    attention="block",
    usual_mask=151669,
    usual_block=4,
    models="SDAR-30B-A3B-Chat",
    limits="adapters leave routers and experts alone; routers are never trained",
)
