"""Random checkpoints of the block diffusion and expert families in the hub's layouts, and a plain model.

Names, shapes and arithmetic are spelled out from the published schemas, without the package's tables. The
plain model takes one row without padding and loops over tokens and experts.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from dtm.random import stream

VOCABULARY, MASK, END = 23, 20, 2
COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "eos_token_id": END,
    "pad_token_id": END,
}
QWEN3 = {"head_dim": 8, "attention_bias": False, "intermediate_size": 32}
CHOSEN = {"num_experts": 8, "num_experts_per_tok": 3}
CONFIGS: dict[str, dict[str, Any]] = {
    "sdar": {**COMMON, **QWEN3, "model_type": "sdar", "architectures": ["SDARForCausalLM"]},
    "sdar_moe": {
        **COMMON, **QWEN3, **CHOSEN, "model_type": "sdar_moe", "architectures": ["SDARMoeForCausalLM"],
        "moe_intermediate_size": 16, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
    },
    "fast_dllm": {
        **COMMON, "model_type": "Fast_dLLM_Qwen", "architectures": ["Fast_dLLM_QwenForCausalLM"],
        "intermediate_size": 32, "bd_size": 4, "conplemenrary_mask": True,
    },
    "llada_moe": {
        **COMMON, **CHOSEN, "model_type": "llada", "architectures": ["LLaDAMoEModelLM"],
        "dense_intermediate_size": 32, "expert_intermediate_size": 16, "shared_expert_intermediate_size": 16,
        "moe_layer_freq": [0, 1], "moe_router_enable_expert_bias": True, "norm_topk_prob": True,
        "qk_layernorm": True,
    },
    "llada2": {
        **COMMON, **CHOSEN, "model_type": "llada2_moe", "architectures": ["LLaDA2MoeModelLM"],
        "head_dim": 8, "intermediate_size": 32, "moe_intermediate_size": 16, "num_shared_experts": 1,
        "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2, "routed_scaling_factor": 2.5,
        "partial_rotary_factor": 0.5, "rotary_dim": 4, "use_qk_norm": True, "score_function": "sigmoid",
        "moe_router_enable_expert_bias": True, "norm_topk_prob": True,
    },
}  # fmt: skip
BLOCKS = {"sdar": 4, "sdar_moe": 4, "fast_dllm": 4, "llada_moe": None, "llada2": 4}
"""Block size of each; None: full attention."""


def keywords(family: str) -> dict[str, Any]:
    """What `dtm.load_model` must be told beside the folder."""
    block = BLOCKS[family]
    return {"mask_id": MASK} | ({} if block is None else {"attention": "block", "block": block})


def head_width(config: dict[str, Any]) -> int:
    return config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]


def has_experts(config: dict[str, Any], layer: int) -> bool:
    if "moe_layer_freq" in config:
        return bool(config["moe_layer_freq"][layer])
    return "num_experts" in config and layer >= config.get("first_k_dense_replace", 0)


def gated(prefix: str, width: int, inner: int) -> dict[str, tuple[int, ...]]:
    sides = {"gate_proj": (inner, width), "up_proj": (inner, width), "down_proj": (width, inner)}
    return {f"{prefix}{name}.weight": shape for name, shape in sides.items()}


def shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a checkpoint."""
    width, head = config["hidden_size"], head_width(config)
    wide, narrow = head * config["num_attention_heads"], head * config["num_key_value_heads"]
    is_llada2 = config["model_type"] == "llada2_moe"
    table = (VOCABULARY, width)
    embedding = "model.word_embeddings" if is_llada2 else "model.embed_tokens"
    found: dict[str, tuple[int, ...]] = {
        f"{embedding}.weight": table, "model.norm.weight": (width,), "lm_head.weight": table,
    }  # fmt: skip
    for n in range(config["num_hidden_layers"]):
        layer = f"model.layers.{n}."
        found |= {f"{layer}{name}_layernorm.weight": (width,) for name in ("input", "post_attention")}
        if is_llada2:
            found |= {
                f"{layer}attention.query_key_value.weight": (wide + 2 * narrow, width),
                f"{layer}attention.dense.weight": (width, wide),
                f"{layer}attention.query_layernorm.weight": (head,),
                f"{layer}attention.key_layernorm.weight": (head,),
            }
        else:
            outputs = {"q": wide, "k": narrow, "v": narrow}
            found |= {f"{layer}self_attn.{p}_proj.weight": (o, width) for p, o in outputs.items()}
            found[f"{layer}self_attn.o_proj.weight"] = (width, wide)
            if config["model_type"] == "Fast_dLLM_Qwen":
                found |= {f"{layer}self_attn.{p}_proj.bias": (o,) for p, o in outputs.items()}
            else:
                found |= {f"{layer}self_attn.{p}_norm.weight": (head,) for p in "qk"}
        if not has_experts(config, n):
            inner = config.get("dense_intermediate_size") or config["intermediate_size"]
            found |= gated(f"{layer}mlp.", width, inner)
            continue
        inner = config.get("expert_intermediate_size") or config["moe_intermediate_size"]
        found[f"{layer}mlp.gate.weight"] = (config["num_experts"], width)
        for e in range(config["num_experts"]):
            found |= gated(f"{layer}mlp.experts.{e}.", width, inner)
        if config.get("moe_router_enable_expert_bias"):
            name = "mlp.gate.expert_bias" if is_llada2 else "mlp.expert_bias"
            found[layer + name] = (config["num_experts"],)
        if config.get("num_shared_experts") or config.get("shared_expert_intermediate_size"):
            found |= gated(f"{layer}{'mlp.shared_experts' if is_llada2 else 'shared_expert'}.", width, inner)
    return found


@pytest.fixture
def write_published(tmp_path) -> Callable[..., Path]:
    """A random checkpoint of a family; with ``stacked`` the experts of a layer are one tensor."""

    def write(family: str, stacked: bool = False, name: str = "published", **changes: Any) -> Path:
        folder, config = tmp_path / name, CONFIGS[family] | changes
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
        noise = stream(0, "checkpoint")
        tensors = {
            tensor: torch.randn(shape, generator=noise) * (0.1 if "expert_bias" in tensor else 0.3)
            + ("norm" in tensor)
            for tensor, shape in shapes(config).items()
        }
        save_file(in_stacks(tensors) if stacked else tensors, folder / "model.safetensors")
        return folder

    return write


def in_stacks(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same weights with the experts of a layer in one tensor, without ``.weight``."""
    stacks: dict[str, list[Tensor]] = {}
    for name, value in tensors.items():
        before, found, after = name.partition(".mlp.experts.")
        if found:
            stacks.setdefault(f"{before}{found}{after.split('.')[1]}", []).append(value)
    plain = {name: value for name, value in tensors.items() if ".mlp.experts." not in name}
    return plain | {name: torch.stack(parts) for name, parts in stacks.items()}


def plain_logits(
    config: dict[str, Any], tensors: dict[str, Tensor], ids: Tensor, block: int | None
) -> Tensor:
    """Logits of one row without padding, in float64."""
    tensors = {name: value.double() for name, value in tensors.items()}
    is_llada2 = config["model_type"] == "llada2_moe"
    heads, kv_heads, head = config["num_attention_heads"], config["num_key_value_heads"], head_width(config)
    place = torch.arange(len(ids))
    hidden = torch.zeros(len(ids), len(ids), dtype=torch.bool)
    if block is not None:
        hidden = place // block > place[:, None] // block

    def norm(x: Tensor, name: str) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + config["rms_norm_eps"]).sqrt() * tensors[name]

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ tensors[name + ".weight"].T + tensors.get(name + ".bias", torch.zeros(()))

    def feed(x: Tensor, prefix: str) -> Tensor:
        gate = linear(x, prefix + "gate_proj")
        return linear(gate * gate.sigmoid() * linear(x, prefix + "up_proj"), prefix + "down_proj")

    def turn(x: Tensor) -> Tensor:  # [L, heads, head]
        half = int(head * config.get("partial_rotary_factor", 1)) // 2
        speed = config["rope_theta"] ** -(torch.arange(half).double() / half)
        angle = place.double()[:, None, None] * speed
        turned = torch.complex(x[..., :half], x[..., half : 2 * half])
        turned = turned * torch.polar(torch.ones_like(angle), angle)
        return torch.cat([turned.real, turned.imag, x[..., 2 * half :]], -1)

    x = tensors["model.word_embeddings.weight" if is_llada2 else "model.embed_tokens.weight"][ids]
    for n in range(config["num_hidden_layers"]):
        layer = f"model.layers.{n}."
        inner = norm(x, layer + "input_layernorm.weight")
        if is_llada2:
            parts = linear(inner, layer + "attention.query_key_value").unflatten(-1, (-1, head))
            q, k, v = parts.split((heads, kv_heads, kv_heads), dim=1)
        else:
            q, k, v = (linear(inner, f"{layer}self_attn.{p}_proj").unflatten(-1, (-1, head)) for p in "qkv")
        names = ("attention.query_layernorm", "attention.key_layernorm") if is_llada2 else (
            "self_attn.q_norm", "self_attn.k_norm",
        )  # fmt: skip
        if f"{layer}{names[0]}.weight" in tensors:
            q, k = (norm(each, f"{layer}{name}.weight") for each, name in zip((q, k), names, strict=True))
        k, v = (each.repeat_interleave(heads // kv_heads, 1) for each in (turn(k), v))
        scores = torch.einsum("lhe,mhe->hlm", turn(q), k) / head**0.5
        mixed = torch.einsum("hlm,mhe->lhe", scores.masked_fill(hidden, -torch.inf).softmax(-1), v)
        x = x + linear(mixed.flatten(1), layer + ("attention.dense" if is_llada2 else "self_attn.o_proj"))
        inner = norm(x, layer + "post_attention_layernorm.weight")
        if has_experts(config, n):
            x = x + torch.stack([_mixture(config, tensors, layer, token, feed) for token in inner])
        else:
            x = x + feed(inner, layer + "mlp.")
    return linear(norm(x, "model.norm.weight"), "lm_head")


def _mixture(
    config: dict[str, Any], tensors: dict[str, Tensor], layer: str, x: Tensor, feed: Callable[..., Tensor]
) -> Tensor:
    """The feed-forward layer of one token, by the rule of its family."""
    scores, k = tensors[layer + "mlp.gate.weight"] @ x, config["num_experts_per_tok"]
    if config["model_type"] == "llada2_moe":
        scores = scores.sigmoid()
        biased = scores + tensors[layer + "mlp.gate.expert_bias"]
        size = config["num_experts"] // config["n_group"]
        worth = [sum(sorted(group.tolist())[-2:]) for group in biased.split(size)]
        kept = sorted(range(len(worth)), key=worth.__getitem__)[-config["topk_group"] :]
        allowed = [e for e in range(config["num_experts"]) if e // size in kept]
        chosen = sorted(allowed, key=lambda e: float(biased[e]))[-k:]
        total = sum(scores[e] for e in chosen)
        weights = {e: scores[e] / total * config["routed_scaling_factor"] for e in chosen}
    else:
        scores = scores.softmax(-1) + tensors.get(layer + "mlp.expert_bias", torch.zeros(()))
        chosen = scores.topk(k).indices.tolist()
        total = sum(scores[e] for e in chosen) if config["model_type"] == "sdar_moe" else torch.ones(())
        weights = {e: scores[e] / total for e in chosen}
    made = sum(weight * feed(x, f"{layer}mlp.experts.{e}.") for e, weight in weights.items())
    for shared in ("mlp.shared_experts.", "shared_expert."):
        if f"{layer}{shared}gate_proj.weight" in tensors:
            made = made + feed(x, layer + shared)
    return made
