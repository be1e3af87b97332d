"""Sizes of published models of the block diffusion and expert families, from their configurations alone."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

import dtm
from dtm.capacity.activations import activations
from dtm.capacity.flops import update_flops
from dtm.capacity.memory import (
    TrainingShape,
    active_parameters,
    estimate,
    parameters,
    weights,
)
from dtm.models import LoRA
from dtm.models.families import read_sizes
from dtm.models.storage import without_memory
from published import CONFIGS, keywords

QWEN = {"vocab_size": 151936, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": False}
SDAR = {**QWEN, "model_type": "sdar", "head_dim": 128, "num_key_value_heads": 8, "eos_token_id": 151643}
MODELS = {
    "SDAR-4B": (
        {**SDAR, "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36}
        | {"num_attention_heads": 32},
        8_822_848_512,
    ),
    "SDAR-8B": (
        {**SDAR, "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36}
        | {"num_attention_heads": 32},
        16_381_470_720,
    ),
    "SDAR-30B-A3B": (
        {**SDAR, "model_type": "sdar_moe", "hidden_size": 2048, "intermediate_size": 6144}
        | {"num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4, "num_experts": 128}
        | {"num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": True},
        61_064_245_248,
    ),
    "Fast_dLLM_v2_7B": (
        {**QWEN, "model_type": "Fast_dLLM_Qwen", "vocab_size": 152064, "hidden_size": 3584}
        | {"intermediate_size": 18944, "num_hidden_layers": 28, "num_attention_heads": 28}
        | {"num_key_value_heads": 4, "bd_size": 32, "eos_token_id": 151645},
        15_231_233_024,
    ),
    "LLaDA2.0-mini": (
        {"model_type": "llada2_moe", "vocab_size": 157184, "hidden_size": 2048, "num_hidden_layers": 20}
        | {"num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 5120}
        | {"first_k_dense_replace": 1, "moe_intermediate_size": 512, "num_experts": 256}
        | {"num_experts_per_tok": 8, "num_shared_experts": 1, "n_group": 8, "topk_group": 4}
        | {"routed_scaling_factor": 2.5, "partial_rotary_factor": 0.5, "use_qk_norm": True}
        | {"moe_router_enable_expert_bias": True, "rms_norm_eps": 1e-6, "rope_theta": 600000}
        | {"tie_word_embeddings": False, "pad_token_id": 156892},
        32_511_286_784,
    ),
}


def shape_of(name: str, folder):
    (folder / "config.json").write_text(json.dumps(MODELS[name][0]))
    return read_sizes(folder)


@pytest.mark.parametrize("name", MODELS)
def test_bytes_in_bfloat16_are_those_of_the_published_index(tmp_path, name):
    shape = shape_of(name, tmp_path)
    assert 2 * parameters(shape) == MODELS[name][1]


def test_a_token_passes_through_the_active_experts(tmp_path):
    mini, large = (shape_of(name, tmp_path) for name in ("LLaDA2.0-mini", "SDAR-30B-A3B"))
    assert active_parameters(mini) == pytest.approx(1.44e9, rel=0.01)
    assert active_parameters(large) == pytest.approx(3.35e9, rel=0.01)
    # Two operations for each active weight; embeddings are looked up, and the head is scored elsewhere.
    linear = active_parameters(mini) - 2 * mini.rows * mini.width
    assert mini.flops(1, 0, 1) / 2 == pytest.approx(linear + mini.rows * mini.width, rel=1e-3)


@pytest.mark.parametrize("family", CONFIGS)
def test_estimates_of_weights_are_those_of_the_model(write_published, family):
    model = dtm.load_model(write_published(family), dtype=torch.bfloat16, **keywords(family))
    assert parameters(model.config) == sum(value.numel() for value in model.parameters())
    found = sum(value.nbytes for value in model.parameters())
    biases = sum(value.nbytes for name, value in model.named_parameters() if name.endswith("experts.bias"))
    assert weights(model.config, 2) == found - biases // 2  # biases of experts are float32 too: left out


def test_four_bits_of_experts_are_estimated_as_they_are_stored(write_published):
    pytest.importorskip("bitsandbytes")
    folder = write_published("llada2", moe_intermediate_size=32)
    model = dtm.load_model(folder, nf4=True, dtype=torch.float32, **keywords("llada2"))
    stack = model.blocks[1].experts.up
    linear = next(linear for linear in model.linears() if linear.name == "expert_up")
    assert stack.packed.nbytes + stack.scales.nbytes == linear.weights * (0.5 + 4 / 64)


def test_activations_count_the_experts_that_a_token_passes_through(tmp_path):
    mini = shape_of("LLaDA2.0-mini", tmp_path)
    run = TrainingShape(rows=4, length=428, scored=16, rollouts=64, lora=LoRA(rank=32))
    wider = replace(mini, experts=replace(mini.experts, count=512))
    more = replace(mini, experts=replace(mini.experts, active=16))
    scores = 19 * (4 * 428) * 256 * 4  # in float32, of all experts
    assert activations(wider, run) - activations(mini, run) == pytest.approx(scores, rel=0.06)
    assert activations(more, run) > 1.4 * activations(mini, run)
    assert activations(mini, replace(run, doubled=True)) == pytest.approx(2 * activations(mini, run), rel=0.1)
    assert estimate(mini, run).total > estimate(mini, replace(run, nf4=True)).total
    assert update_flops(mini, 428, 16, run.lora, 0, doubled=True) > 2 * update_flops(
        mini, 428, 16, run.lora, 0
    )


def test_every_expert_is_declared_where_the_model_has_it(tmp_path):
    shape = shape_of("LLaDA2.0-mini", tmp_path)
    model = without_memory(replace(shape, layers=2, experts=replace(shape.experts, layers=(1,))))
    for linear in model.linears():
        for path in linear.paths():
            module = model.get_submodule(path)
            expected = (linear.outputs, linear.inputs)
            assert tuple(module.weight.shape) in (expected, (linear.stacked, *expected))
