"""LLaDA2.0 and 2.1: block diffusion, experts chosen by sigmoid scores in groups, and a shared expert.

Queries, keys and values are one matrix, and half of each head rotates. Blocks are counted from a row's first
token; configurations state neither the block size nor the mask token. LLaDA2.1's decoder also edits revealed
tokens. That is no absorbing process, so models are decoded without editing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dtm.errors import CheckpointError, require
from dtm.models.families.base import STANDARD, UNSCALED, Family, HubConfig, standard, written
from dtm.models.routing import Experts
from dtm.models.shape import TransformerConfig

_SUPPORTED: dict[str, tuple[Any, ...]] = {
    **UNSCALED,
    "embedding_dropout": (0.0,),
    "output_dropout": (0.0,),
    "norm_head": (False,),
    "norm_softmax": (False,),
    "norm_topk_prob": (True,),
    "router_dtype": ("fp32",),
    "score_function": ("sigmoid",),
    "use_bias": (False,),
    "use_qkv_bias": (False,),
    "use_rmsnorm": (True,),
    "using_split_qkv_in_self_attention": (False,),
}
_READ = (
    *("first_k_dense_replace", "moe_intermediate_size", "moe_router_enable_expert_bias", "n_group"),
    *("num_experts", "num_experts_per_tok", "num_shared_experts", "partial_rotary_factor", "rotary_dim"),
    *("routed_scaling_factor", "topk_group", "use_qk_norm"),
)
_HARMLESS = ("output_router_logits", "router_aux_loss_coef")


def read_config(config: HubConfig) -> TransformerConfig:
    """Read the native shape from a configuration of LLaDA2."""
    config = _flat(config)
    config.require_supported(_SUPPORTED, (*STANDARD, *_READ, *_HARMLESS))
    if config.values.get("eos_token_id") is None:  # the padding token ends a text
        config = HubConfig({**config.values, "eos_token_id": config.integer("pad_token_id")}, config.source)
    width, shared = config.integer("moe_intermediate_size"), config.optional("num_shared_experts")
    experts = Experts(
        count=config.integer("num_experts"),
        active=config.integer("num_experts_per_tok"),
        width=width,
        layers=tuple(range(config.integer("first_k_dense_replace"), config.full_layers())),
        score="sigmoid",
        bias="choice" if config.flag("moe_router_enable_expert_bias", False) else "none",
        groups=config.integer("n_group"),
        kept_groups=config.integer("topk_group"),
        scale=config.number("routed_scaling_factor"),
        shared=shared * width if shared else None,
    )
    made = TransformerConfig(
        **standard(config),
        experts=experts,
        fused_qkv=True,
        qk_norm=config.flag("use_qk_norm", False),
        block_origin="token",
        family="llada2",
    )
    return replace(made, rope_width=_rotated(config, made.head_size))


def _flat(config: HubConfig) -> HubConfig:
    """Move the share of channels that rotate out of ``rope_parameters``, where transformers 5 writes it."""
    stated = config.values.get("rope_parameters")
    if not isinstance(stated, dict) or "partial_rotary_factor" not in stated:
        return config
    rest = dict(stated)
    share = rest.pop("partial_rotary_factor")
    require(
        config.values.get("partial_rotary_factor", share) == share,
        f"{config.source}: 'partial_rotary_factor' is {config.values.get('partial_rotary_factor')!r}, and "
        f"{share!r} in 'rope_parameters'",
        CheckpointError,
    )
    return HubConfig(
        {**config.values, "rope_parameters": rest, "partial_rotary_factor": share}, config.source
    )


def _rotated(config: HubConfig, head_width: int) -> int:
    """Channels of a head that rotate, stated as a share of the head, as a number, or both."""
    share = (
        1.0 if config.values.get("partial_rotary_factor") is None else config.number("partial_rotary_factor")
    )
    stated = config.optional("rotary_dim")
    require(
        stated in (None, round(share * head_width)),
        f"{config.source}: 'rotary_dim' is {stated}, and 'partial_rotary_factor' {share:g} of heads of "
        f"{head_width} channels means {round(share * head_width)}",
        CheckpointError,
    )
    return round(share * head_width)


def write_config(shape: TransformerConfig) -> dict[str, Any]:
    """Make the hub's configuration of a shape."""
    experts = shape.experts
    if experts is None or not shape.fused_qkv or shape.rows != shape.vocab_size:
        raise CheckpointError("this shape is not one of llada2: experts, fused qkv or rows of the embedding")
    return {
        "architectures": ["LLaDA2MoeModelLM"],
        "model_type": "llada2_moe",
        **written(shape),
        "head_dim": shape.head_size,
        "pad_token_id": shape.eos_id,
        "first_k_dense_replace": min(experts.layers),
        "moe_intermediate_size": experts.width,
        "moe_router_enable_expert_bias": experts.bias != "none",
        "n_group": experts.groups,
        "topk_group": experts.kept_groups,
        "num_experts": experts.count,
        "num_experts_per_tok": experts.active,
        "num_shared_experts": 0 if experts.shared is None else experts.shared // experts.width,
        "partial_rotary_factor": shape.rotated / shape.head_size,
        "rotary_dim": shape.rotated,
        "routed_scaling_factor": experts.scale,
        "score_function": "sigmoid",
        "norm_topk_prob": True,
        "use_qk_norm": shape.qk_norm,
    }


LLADA2 = Family(
    name="llada2",
    model_type="llada2_moe",
    aliases=("llada2_moe_veomni",),
    read=read_config,
    modules={
        "embedding": "model.word_embeddings",
        "norm": "model.norm",
        "unembedding": "lm_head",
        "blocks.*.attention_norm": "model.layers.*.input_layernorm",
        "blocks.*.attention.qkv": "model.layers.*.attention.query_key_value",
        "blocks.*.attention.q_norm": "model.layers.*.attention.query_layernorm",
        "blocks.*.attention.k_norm": "model.layers.*.attention.key_layernorm",
        "blocks.*.attention.out": "model.layers.*.attention.dense",
        "blocks.*.ffn_norm": "model.layers.*.post_attention_layernorm",
        "blocks.*.gate": "model.layers.*.mlp.gate_proj",
        "blocks.*.up": "model.layers.*.mlp.up_proj",
        "blocks.*.down": "model.layers.*.mlp.down_proj",
        "blocks.*.experts.router": "model.layers.*.mlp.gate",
        "blocks.*.experts.bias": "model.layers.*.mlp.gate.expert_bias",
        "blocks.*.experts.gate": "model.layers.*.mlp.experts.*.gate_proj",
        "blocks.*.experts.up": "model.layers.*.mlp.experts.*.up_proj",
        "blocks.*.experts.down": "model.layers.*.mlp.experts.*.down_proj",
        "blocks.*.shared.gate": "model.layers.*.mlp.shared_experts.gate_proj",
        "blocks.*.shared.up": "model.layers.*.mlp.shared_experts.up_proj",
        "blocks.*.shared.down": "model.layers.*.mlp.shared_experts.down_proj",
    },
    write=write_config,
    leaves_out=True,
    attention="block",
    usual_mask=156895,
    usual_block=32,
    models="inclusionAI/LLaDA2.{0,1}-{mini,flash}",
    limits="LLaDA2.1 is decoded without token editing, which is not an absorbing process; LLaDA2.2, which "
    "inserts and deletes tokens, is none either",
)
