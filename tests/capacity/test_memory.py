"""Estimates of memory against real models, autograd's own books, and the 8B checkpoint's index."""

from __future__ import annotations

import json

import pytest
import torch

import dtm
from dtm.capacity.memory import (
    NF4_BYTES,
    TrainingShape,
    activations,
    adapter_parameters,
    estimate,
    parameters,
    weights,
)
from dtm.models import LoRA, Policy, Transformer, TransformerConfig
from dtm.models.adapters import adapter_weights
from dtm.models.families import read_shape
from dtm.models.nf4 import is_nf4
from dtm.random import stream

SHAPES = [
    {},
    {"kv_heads": 2},
    {"qkv_bias": True, "kv_heads": 1},
    {"tied": True},
    {"embedding_size": 64},
    {"head_width": 24, "kv_heads": 2, "qkv_bias": True},
    {"head_width": 24, "kv_heads": 2, "qk_norm": True},
]
LLADA_8B = TransformerConfig(
    vocab_size=126464,
    mask_id=126336,
    eos_id=126081,
    width=4096,
    layers=32,
    heads=32,
    ffn=12288,
    family="llada",
)


def shape(**changes) -> TransformerConfig:
    sizes = {"vocab_size": 50, "mask_id": 49, "eos_id": 0, "width": 64, "layers": 3, "heads": 4, "ffn": 160}
    return TransformerConfig(**sizes | changes)


def run(**changes) -> TrainingShape:
    return TrainingShape(
        **{"rows": 8, "length": 32, "scored": 4, "rollouts": 10, "compute_bytes": 4} | changes
    )


@pytest.mark.parametrize("changes", SHAPES)
def test_parameters_are_counted_exactly(changes):
    config = shape(**changes)
    assert parameters(config) == sum(p.numel() for p in Transformer(config).parameters())


def test_the_8b_weights_take_what_the_index_says(shared_data):
    folder = shared_data / "hub" / "llada-8b-instruct"
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    assert weights(read_shape(folder)[1], 2) == index["metadata"]["total_size"]


def test_the_8b_weights_take_the_published_sixteen_gigabytes():
    assert weights(LLADA_8B, 2) == 16_031_162_368
    assert weights(LLADA_8B, 2, nf4=True) / 2**30 == pytest.approx(5.3, abs=0.1)


@pytest.mark.parametrize("targets", [("all",), ("published",)])
@pytest.mark.parametrize("head_width", [None, 24])
def test_adapters_are_counted_exactly(targets, head_width):
    lora, config = LoRA(rank=8, targets=targets), shape(kv_heads=2, head_width=head_width)
    policy = Policy(Transformer(config), lora=lora)
    assert adapter_parameters(config, lora) == sum(
        p.numel() for p in adapter_weights(policy.student).values()
    )


def test_the_published_adapters_have_168_million_parameters():
    assert adapter_parameters(LLADA_8B, LoRA(targets=("published",))) == pytest.approx(168e6, rel=0.01)


def saved_bytes(model: Transformer) -> int:
    """What autograd keeps of a forward pass of `run`, each storage once and without the weights."""
    tokens, at = torch.zeros(8, 32, dtype=torch.long), torch.arange(0, 8 * 32, 8)
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept: dict[int, torch.Tensor] = {}

    def pack(value: torch.Tensor) -> torch.Tensor:
        if value.untyped_storage().data_ptr() not in own:
            kept[value.untyped_storage().data_ptr()] = value
        return value

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
        model.hidden(tokens, at=at)
    return sum(value.untyped_storage().nbytes() for value in kept.values())


@pytest.mark.parametrize("changes", [{}, {"kv_heads": 2}, {"kv_heads": 2, "head_width": 32, "qk_norm": True}])
@pytest.mark.parametrize("lora", [None, LoRA(rank=8)])
def test_activations_are_what_autograd_keeps(lora, changes):
    config = shape(**changes, layers=12)
    base = Transformer(config, stream(0, "test"))
    model = base if lora is None else Policy(base, lora=lora).student
    kept = saved_bytes(model)
    assert kept == pytest.approx(activations(config, run(lora=lora)), rel=0.05)
    for blocks in (6, 12):
        model.recompute = blocks
        whole = activations(config, run(lora=lora, recompute=blocks))
        one = activations(config, run(lora=lora, scored=32)) / 12
        lean = whole - one  # the block that is recomputed later
        found = saved_bytes(model)
        assert found == pytest.approx(lean, rel=0.05 if blocks == 6 else 0.25)


def test_nf4_bytes_are_those_of_the_library(write_hub):
    pytest.importorskip("bitsandbytes")
    model = dtm.load_model(write_hub("llada", d_model=256, mlp_hidden_size=512), nf4=True)
    layer = model.blocks[0].up
    assert is_nf4(layer)
    state = layer.weight.quant_state
    stored = layer.weight.nbytes + state.absmax.nbytes + state.state2.absmax.nbytes
    assert stored == pytest.approx(256 * 512 * NF4_BYTES)


def test_the_parts_add_up_and_follow_the_setting():
    config, lora = shape(family="llada"), LoRA(rank=8)
    full, adapted = estimate(config, run()), estimate(config, run(lora=lora))
    averaged = estimate(config, run(lora=lora, ema=True))
    assert full.total == sum(getattr(full, name) for name in full.__slots__)  # nothing is decoded
    assert full.adapters == 2 * parameters(config)  # π_a in two bytes
    assert adapted.adapters == 8 * adapter_parameters(config, lora)  # student and π_a in float32
    assert averaged.adapters == 12 * adapter_parameters(config, lora)
    assert adapted.optimizer == 12 * adapter_parameters(config, lora)
    assert adapted.logits == 6 * 4 * 8 * 4 * 50
    assert adapted.buffer == 10 * (32 * 22 + 12)
    assert "total" in str(full)


@pytest.mark.parametrize("head_width", [None, 24])
@pytest.mark.parametrize("targets", ["all", "published", "down"])
def test_decoding_takes_keys_values_and_logits_and_merged_layers_last(targets, head_width):
    config = shape(kv_heads=2, head_width=head_width, family="llada")
    lora = LoRA(rank=8, targets=(targets,))
    plain = estimate(config, run(lora=lora, decoded=5, candidates=7))
    assert plain.rollouts == 5 * 32 * 4 * (2 * 64 + 3 * 160) + 4 * 4 * 7 * 50
    cached = estimate(config, run(lora=lora, decoded=5, candidates=7, cached=True))
    model = Transformer(config)
    kept = sum(keys.nbytes + values.nbytes for keys, values in model.new_cache(5, 32).layers)
    assert cached.rollouts - plain.rollouts == kept
    fused = estimate(config, run(lora=lora, decoded=5, candidates=7, merged=True, weight_bytes=4))
    policy = Policy(model, lora=lora, merge=True)
    copied = {id(p): p for p in policy.pi_a().parameters()}
    own = {id(p) for p in policy.teacher.parameters()}
    assert fused.adapters - plain.adapters == sum(p.nbytes for key, p in copied.items() if key not in own)
    assert fused.rollouts == plain.rollouts


def test_a_run_needs_the_larger_of_training_and_decoding():
    config = shape()
    light, heavy = estimate(config, run(decoded=1)), estimate(config, run(decoded=10_000))
    assert light.total == light.persistent + light.activations + light.logits
    assert heavy.total == heavy.persistent + heavy.rollouts


def test_logits_are_those_of_the_positions_held_together():
    config = shape()
    assert estimate(config, run(held=5)).logits == 6 * 4 * 5 * 50
    assert estimate(config, run(held=500)).logits == 6 * 4 * 8 * 4 * 50
