"""Estimates of memory against real models, autograd's own books, and the 8B checkpoint's index."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import dtm
from dtm.capacity.activations import activations
from dtm.capacity.memory import (
    NF4_BYTES,
    TrainingShape,
    adapter_parameters,
    estimate,
    parameters,
    weights,
)
from dtm.models import LoRA, Policy, Transformer, TransformerConfig
from dtm.models.adapters import adapter_weights
from dtm.models.families import read_shape
from dtm.models.nf4 import is_nf4
from dtm.models.routing import Experts
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
        **{"rows": 8, "length": 32, "scored": 4, "rollouts": 10, "compute_bytes": 4, "padded": False}
        | changes
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


EXPERTS = Experts(count=8, active=3, width=40, layers=tuple(range(1, 12)), shared=24)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"kv_heads": 2},
        {"kv_heads": 2, "head_width": 32, "qk_norm": True},
        {"kv_heads": 2, "qk_norm": True, "attention_block": 8},
        {"kv_heads": 2, "qk_norm": True, "attention_block": 8, "experts": EXPERTS},
    ],
)
@pytest.mark.parametrize("lora", [None, LoRA(rank=8), LoRA(rank=8, targets=("published",))])
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


COMPILED = """
import sys
from functools import cache, partial
import torch
import dtm.models.transformer as transformer
from test_memory import saved_bytes, shape
from dtm.models import LoRA, Policy, Transformer
from dtm.random import stream

compiled = partial(torch.compile, dynamic=True, backend="aot_eager_decomp_partition")
transformer.fused = cache(compiled)
config = shape(kv_heads=2, qk_norm=True, attention_block=8)
model = Policy(Transformer(config, stream(0, "test")), lora=LoRA(rank=8, targets=(sys.argv[1],))).student
model.compiled = True
print(saved_bytes(model))
"""


@pytest.mark.parametrize("targets", ["all", "published"])
def test_activations_of_a_compiled_pass_are_what_autograd_keeps(targets):
    """In a process of its own: checks of shapes cannot be compiled.

    The compiler itself divides the pass into forward and backward; its kernels are left out.
    """
    lora, config = LoRA(rank=8, targets=(targets,)), shape(kv_heads=2, qk_norm=True, attention_block=8)
    done = subprocess.run(
        [sys.executable, "-c", COMPILED, targets],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    expected = activations(config, run(lora=lora, compiled=True))
    assert int(done.stdout) == pytest.approx(expected, rel=0.05)


def test_half_precision_keeps_copies_of_both_factors_of_an_adapter():
    config, thin, wide = shape(layers=4), LoRA(rank=8), LoRA(rank=24)
    grown = [
        activations(config, run(rows=0, lora=lora, compute_bytes=2)) / adapter_parameters(config, lora)
        for lora in (thin, wide)
    ]
    assert grown == [2, 2]


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


def test_the_first_pass_with_the_prefix_cache_is_over_the_prompts_and_one_block():
    config = shape(attention_block=4)
    sizes = {"decoded": 12, "cached": True, "prompt": 9}
    kept = estimate(config, run(decoded=12, cached=True)).rollouts - 12 * 32 * 4 * (2 * 64 + 3 * 160)
    states = {
        together: (estimate(config, run(**sizes, together=together)).rollouts - kept) / (2 * 64 + 3 * 160) / 4
        for together in (1, 4, 12)
    }
    # The prompt ends inside the third block; four rows at most are different, one of them from a prompt that
    # the batch cuts. Later passes are over two blocks of all rows.
    assert states == {1: 12 * 12, 4: 12 * 8, 12: 12 * 8}
    assert estimate(config, run(**sizes | {"prompt": 28}, together=4)).rollouts - kept == 4 * 32 * 4 * 608


def test_compiled_drawing_holds_logits_in_the_precision_of_the_model():
    config = shape()
    assert estimate(config, run(candidates=7, compiled=True, compute_bytes=2)).rollouts == 2 * 7 * 50


def test_a_run_needs_the_larger_of_training_and_decoding():
    config = shape()
    light, heavy = estimate(config, run(decoded=1)), estimate(config, run(decoded=10_000))
    assert light.total == light.persistent + light.activations + light.logits
    assert heavy.total == heavy.persistent + heavy.rollouts


def test_logits_are_those_of_the_positions_held_together():
    config = shape()
    assert estimate(config, run(held=5)).logits == 6 * 4 * 5 * 50
    assert estimate(config, run(held=500)).logits == 6 * 4 * 8 * 4 * 50


def test_updates_of_8b_models_need_what_was_measured():
    """Peaks on an H200, in bfloat16: LLaDA-8B of `results/llada8b.json`, and SDAR-8B in blocks of 32."""
    found = json.loads((Path(__file__).parents[2] / "results" / "llada8b.json").read_text())
    fast = found["train_fast_by_micro_batch"].values()
    published = LoRA(targets=("published",))
    for one in (*fast, found["train_lean_bf16"], found["train_lean_nf4"], found["train_small_card"]):
        setting = one["setting"]
        sizes = run(
            rows=setting["micro_batch"], length=428, scored=16, rollouts=4 * setting["micro_batch"],
            lora=published, nf4=setting["nf4"], recompute=setting["recomputed_blocks"],
            compiled=not setting["nf4"], merged=setting["merged"], held=530, compute_bytes=2,
        )  # fmt: skip
        assert estimate(LLADA_8B, sizes).total / 2**30 == pytest.approx(one["peak_gib"], rel=0.04)
    sdar = TransformerConfig(
        vocab_size=151_936, mask_id=151_669, eos_id=151_643, width=4096, layers=36, heads=32, kv_heads=8,
        head_width=128, ffn=12_288, qk_norm=True, attention_block=32, block_origin="token", family="sdar",
    )  # fmt: skip
    sizes = run(
        rows=12, length=448, scored=16, rollouts=48, lora=LoRA(), compiled=True, merged=True, held=441,
        compute_bytes=2,
    )  # fmt: skip
    assert estimate(sdar, sizes).total / 2**30 == pytest.approx(62.47, rel=0.02)
