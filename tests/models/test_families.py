"""Block diffusion and expert families: numbers, names, settings, and mistakes that numbers would catch."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import chain

import pytest
import torch
from safetensors.torch import load_file, save_file

import dtm
from dtm.errors import CheckpointError, ConfigError
from dtm.models import Transformer, block
from dtm.models.families import FAMILIES, REFUSED, read_shape, read_sizes
from dtm.models.families.settings import Asked, Sidecar
from dtm.models.source import with_config
from dtm.models.storage import check_weights, save_hub
from dtm.random import stream
from published import BLOCKS, CONFIGS, MASK, keywords, plain_logits

A2D = ["a2d_qwen3", "a2d_qwen2", "a2d_llama"]
GOLDEN = ["sdar", "sdar_moe", "llada2_moe", "llada_moe", "fast_dllm_qwen", *A2D]
BLOCK_CAUSAL = [name for name in GOLDEN if name not in ("llada_moe", *A2D)]


@pytest.fixture
def golden(shared_data):
    """A published-code checkpoint, as a model, and its reference tensors."""

    def load(name: str) -> tuple[Transformer, dict[str, torch.Tensor]]:
        folder = shared_data / "golden" / f"{name}_tiny"
        if not folder.is_dir():
            pytest.skip(f"no reference files in {folder}")
        stored = load_file(folder / "golden.safetensors")
        known = {"mask_id": int(stored["mask_token_id"])}
        if "block_size" in stored:
            known |= {"attention": "block", "block": int(stored["block_size"])}
        elif name in A2D:
            known |= {"attention": "full"}
        return dtm.load_model(folder, dtype=torch.float32, device="cpu", **known), stored

    return load


def worst(found: torch.Tensor, expected: torch.Tensor, real: torch.Tensor) -> float:
    return float((found - expected)[real].abs().max())


# ── reference files ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", GOLDEN)
def test_logits_are_those_of_published_code_padded_or_not(golden, name):
    model, stored = golden(name)
    tokens, mask, expected = stored["input_ids"], stored["attention_mask"], stored["logits"]
    real = mask == 1
    assert worst(model.logits(tokens, mask), expected, real) < 1e-4
    for row, inside in enumerate(real):
        alone = model.logits(tokens[row, inside][None])[0]
        assert (alone - expected[row, inside]).abs().max() < 1e-4
        right = torch.nn.functional.pad(tokens[row, inside], (0, 3), value=2)[None]
        padded = model.logits(right, torch.arange(right.shape[1])[None] < inside.sum())[0, :-3]
        assert (padded - expected[row, inside]).abs().max() < 1e-4
    if "logits_no_mask" in stored:
        assert (model.logits(tokens) - stored["logits_no_mask"]).abs().max() < 1e-4
    assert model.shift == int(stored["shift"])


@pytest.mark.parametrize("name", BLOCK_CAUSAL)
def test_the_doubled_pass_gives_the_predictions_of_published_code(golden, name):
    model, stored = golden(name)
    real, length = stored["attention_mask"] == 1, stored["x0"].shape[1]
    at = real.flatten().nonzero().squeeze(1)
    with torch.no_grad():
        states = model.hidden_doubled(stored["xt"], stored["x0"], real, at)
        found = model.head(states)
    expected = stored.get("train_predictive_logits", stored["train_logits"][:, :length])
    assert (found - expected[real]).abs().max() < 1e-4


@pytest.mark.parametrize("name", BLOCK_CAUSAL)
def test_predictions_on_the_canvas_are_those_of_the_doubled_pass(golden, name):
    """`input_ids` is x_1 before the active block, x_t in it, masks after it."""
    model, stored = golden(name)
    real = stored["attention_mask"] == 1
    active = real & (stored["block_ids"] == stored["active_block"][:, None])
    with torch.no_grad():
        canvas = model(stored["input_ids"], real, active)
        doubled = model(stored["xt"], real, active, clean=stored["x0"])
    torch.testing.assert_close(canvas, doubled, atol=1e-4, rtol=0)


def test_fast_dllm_predicts_from_the_position_before(golden):
    model, stored = golden("fast_dllm_qwen")
    real = stored["attention_mask"] == 1
    with torch.no_grad():
        found = model(stored["input_ids"], real, real)
    expected = stored["predictive_logits"][real]
    expected[:, model.mask_id] = -1e9
    torch.testing.assert_close(found, expected.log_softmax(-1), atol=1e-4, rtol=0)


# ── plausible mistakes: each moves the reference logits by far more than the tolerance ────────────


def with_experts(model, **changes):
    return {"experts": replace(model.config.experts, **changes)}


MISTAKES = {
    "eps": (GOLDEN, lambda m: {"norm_eps": 1.1e-5 - m.config.norm_eps}),
    "rotary base": (GOLDEN, lambda m: {"rope_base": 10_000.0}),
    "causal attention": (A2D, lambda m: {"attention_block": 1}),
    "full attention": (BLOCK_CAUSAL, lambda m: {"attention_block": None}),
    "blocks of another size": (BLOCK_CAUSAL, lambda m: {"attention_block": 2 * m.attention_block}),
    "blocks as columns": (BLOCK_CAUSAL, lambda m: {"block_origin": "column"}),
    "whole heads rotate": (["llada2_moe"], lambda m: {"rope_width": None}),
    "not renormalised": (["sdar_moe", "llada2_moe"], lambda m: with_experts(m, renormalised=False)),
    "renormalised": (["llada_moe"], lambda m: with_experts(m, renormalised=True)),
    "softmax for sigmoid": (["llada2_moe"], lambda m: with_experts(m, score="softmax")),
    "groups ignored": (["llada2_moe"], lambda m: with_experts(m, groups=1, kept_groups=1)),
    "weights with the bias": (["llada2_moe"], lambda m: with_experts(m, bias="weight")),
    "no scaling factor": (["llada2_moe"], lambda m: with_experts(m, scale=1.0)),
    "another number of experts": (["sdar_moe", "llada_moe"], lambda m: with_experts(m, active=1)),
}


@pytest.mark.parametrize(("mistake", "name"), [(m, n) for m, (names, _) in MISTAKES.items() for n in names])
def test_a_plausible_mistake_is_caught_by_the_reference(golden, mistake, name):
    model, stored = golden(name)
    wrong = with_config(model, **MISTAKES[mistake][1](model))
    real = stored["attention_mask"] == 1
    least = 2e-4 if mistake == "eps" else 1e-2  # the tolerance is 1e-4
    assert worst(wrong.logits(stored["input_ids"], real), stored["logits"], real) > least


WEIGHTS = {
    "no bias on the choice": (["llada2_moe"], "experts.bias"),
    "no shared expert": (["llada2_moe"], "shared.down.weight"),
    "no biases of q": (["fast_dllm_qwen", "a2d_qwen2"], "attention.q.bias"),
    "no biases of v": (["fast_dllm_qwen", "a2d_qwen2"], "attention.v.bias"),
}


@pytest.mark.parametrize(("mistake", "name"), [(m, n) for m, (names, _) in WEIGHTS.items() for n in names])
def test_a_forgotten_tensor_is_caught_by_the_reference(golden, mistake, name):
    model, stored = golden(name)
    real, end = stored["attention_mask"] == 1, WEIGHTS[mistake][1]
    with torch.no_grad():
        forgotten = [value.zero_() for each, value in model.named_parameters() if each.endswith(end)]
    assert forgotten
    assert worst(model.logits(stored["input_ids"], real), stored["logits"], real) > 1e-2


@pytest.mark.parametrize("name", ["sdar", "llada2_moe", "llada_moe", "a2d_qwen3"])
def test_norms_of_queries_and_keys_after_the_rotation_are_caught_by_the_reference(golden, name, monkeypatch):
    model, stored = golden(name)
    norms = [(each.attention.q_norm, each.attention.k_norm) for each in model.blocks]
    for each in model.blocks:
        each.attention.q_norm = each.attention.k_norm = None
    late, rotate = chain.from_iterable(norms), block.rotate
    monkeypatch.setattr(block, "rotate", lambda x, rotation: next(late)(rotate(x, rotation)))
    real = stored["attention_mask"] == 1
    assert worst(model.logits(stored["input_ids"], real), stored["logits"], real) > 1e-2


def test_keys_and_values_in_the_wrong_order_are_caught_by_the_reference(golden):
    model, stored = golden("llada2_moe")
    real, shape = stored["attention_mask"] == 1, model.config
    with torch.no_grad():
        for each in model.blocks:
            q, k, v = each.attention.qkv.weight.split((shape.query_width, shape.kv_width, shape.kv_width))
            each.attention.qkv.weight.copy_(torch.cat([q, v, k]))
    assert worst(model.logits(stored["input_ids"], real), stored["logits"], real) > 1e-2


# ── the same on checkpoints that are made here ───────────────────────────────────────────────────


def rows(length: int = 11) -> torch.Tensor:
    return torch.randint(3, MASK + 1, (3, length), generator=stream(0, "tokens"))


@pytest.mark.parametrize("family", CONFIGS)
def test_logits_are_those_of_the_plain_model(write_published, family):
    folder = write_published(family)
    model, tokens = dtm.load_model(folder, **keywords(family)), rows()
    tensors = load_file(folder / "model.safetensors")
    assert model.family == family
    expected = torch.stack([plain_logits(CONFIGS[family], tensors, row, BLOCKS[family]) for row in tokens])
    torch.testing.assert_close(model.logits(tokens).double(), expected, atol=1e-4, rtol=1e-4)
    # Padding on either side: blocks and positions are counted from a row's first token.
    wide = torch.nn.functional.pad(tokens, (5, 2), value=2)
    inside = ((torch.arange(18) >= 5) & (torch.arange(18) < 16)).expand(3, -1)
    padded = model.logits(wide, inside)[:, 5:16].double()
    torch.testing.assert_close(padded, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["sdar_moe", "llada_moe", "llada2"])
def test_experts_load_from_stacks_too(write_published, family):
    one, other = (
        dtm.load_model(write_published(family, stacked, name=f"stacked-{stacked}"), **keywords(family))
        for stacked in (False, True)
    )
    assert one.state_dict().keys() == other.state_dict().keys()
    for name, value in one.state_dict().items():
        assert torch.equal(other.state_dict()[name], value)


def test_a_missing_expert_and_one_of_another_shape_are_named(write_published):
    folder = write_published("llada2")
    stored = load_file(folder / "model.safetensors")
    lost = "model.layers.1.mlp.experts.7.up_proj.weight"
    save_file({name: value for name, value in stored.items() if name != lost}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=rf"misses tensor '{lost}'"):
        check_weights(folder, Asked(mask_token="20", attention="block", block=4))
    save_file(stored | {lost: torch.zeros(3, 3)}, folder / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"experts\.7.* is \(3, 3\), config\.json says \(16, 24\)"):
        dtm.load_model(folder, **keywords("llada2"))


@pytest.mark.parametrize("family", CONFIGS)
def test_a_model_written_in_the_public_layout_comes_back(write_published, tmp_path, family):
    folder = write_published(family)
    model = dtm.load_model(folder, **keywords(family))
    save_hub(model, None, tmp_path / "again")
    again = dtm.load_model(tmp_path / "again")
    assert replace(again.config, head_width=None) == replace(model.config, head_width=None)
    before, after = (load_file(each / "model.safetensors") for each in (folder, tmp_path / "again"))
    assert before.keys() == after.keys()
    assert all(torch.equal(after[name], value) for name, value in before.items())


@pytest.mark.parametrize("family", CONFIGS)
def test_the_native_layout_keeps_the_shape(write_published, tmp_path, family):
    model = dtm.load_model(write_published(family), **keywords(family))
    dtm.save_model(model, tmp_path / "native")
    again = dtm.load_model(tmp_path / "native")
    assert again.config == model.config
    assert torch.equal(again.logits(rows()), model.logits(rows()))


def test_routers_keep_float32_and_are_frozen(write_published):
    model = dtm.load_model(write_published("llada2"), dtype=torch.bfloat16, **keywords("llada2"))
    mixture = model.blocks[1].experts
    assert mixture.router.weight.dtype == mixture.bias.dtype == torch.float32
    assert mixture.gate.weight.dtype == torch.bfloat16
    assert not mixture.router.weight.requires_grad
    assert not mixture.bias.requires_grad
    assert mixture.gate.weight.requires_grad


# ── settings that files leave out ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("family", [name for name in CONFIGS if BLOCKS[name] and name != "fast_dllm"])
def test_a_block_size_is_never_guessed(write_published, family):
    folder, usual = write_published(family), FAMILIES[family].usual_block
    with pytest.raises(CheckpointError, match=rf'--model\.block B.*attention="block", block={usual}'):
        dtm.load_model(folder, mask_id=MASK)
    Sidecar(attention="block", block=4).write(folder)
    assert dtm.load_model(folder, mask_id=MASK).attention_block == 4
    with pytest.raises(CheckpointError, match="states blocks of 4 tokens, and 8 were asked for"):
        dtm.load_model(folder, mask_id=MASK, attention="block", block=8)
    with pytest.raises(CheckpointError, match="have block attention, and full attention was asked for"):
        dtm.load_model(folder, mask_id=MASK, attention="full")


@pytest.mark.parametrize("family", CONFIGS)
def test_a_mask_token_is_never_guessed(write_published, family):
    folder, usual = write_published(family), FAMILIES[family].usual_mask
    with pytest.raises(
        CheckpointError, match=rf"--model\.mask-token \({usual} in published models.*mask_id="
    ):
        read_shape(folder)


def test_a_training_copy_states_block_and_mask(write_published):
    shape = read_shape(write_published("sdar", block_size=8, mask_token_id=5))[1]
    assert (shape.attention_block, shape.mask_id) == (8, 5)


def test_full_attention_of_a_family_is_not_changed(write_published):
    with pytest.raises(CheckpointError, match="llada_moe have full attention"):
        dtm.load_model(write_published("llada_moe"), mask_id=MASK, attention="block", block=4)


def test_sizes_need_neither_mask_nor_block(write_published):
    assert read_sizes(write_published("llada2")).attention_block == 32
    sdar = write_published("sdar", name="sdar")
    assert read_sizes(sdar).attention_block == 4
    assert read_sizes(sdar, Asked(attention="block", block=16)).attention_block == 16


def test_architectures_tell_llada_moe_from_dense_llada(write_published, write_hub):
    assert read_shape(write_published("llada_moe"), Asked(mask_token="20"))[0].name == "llada_moe"
    assert read_shape(write_hub("llada"))[0].name == "llada"


@pytest.mark.parametrize("stated", [5, True, False, "LLaDAMoEModel", {"a": 1}, [["LLaDAMoEModel"]], [None]])
def test_architectures_that_are_no_list_of_texts_are_refused(write_published, stated):
    folder = write_published("llada_moe", architectures=stated)
    with pytest.raises(CheckpointError, match=r"config\.json: architectures must be a list of texts or null"):
        read_shape(folder, Asked(mask_token="20"))


def test_null_architectures_are_none(write_published):
    asked = Asked(mask_token="20", attention="block", block=4)
    assert read_shape(write_published("llada2", architectures=None), asked)[0].name == "llada2"


def test_the_other_names_of_a_family_are_known(write_published):
    folder = write_published("llada2", model_type="llada2_moe_veomni")
    assert read_shape(folder, Asked(mask_token="20", attention="block", block=4))[0].name == "llada2"


@pytest.mark.parametrize("kind", REFUSED)
def test_unsupported_families_are_refused_with_their_reason(write_published, kind):
    with pytest.raises(CheckpointError, match=re.escape(REFUSED[kind])):
        read_shape(write_published("sdar", model_type=kind))


@pytest.mark.parametrize(
    ("family", "changes", "named"),
    [
        ("llada2", {"use_qkv_bias": True}, "'use_qkv_bias' is True; it can only be False"),
        ("llada2", {"norm_topk_prob": False}, "'norm_topk_prob' is False; it can only be True"),
        ("llada2", {"rotary_dim": 8}, "'rotary_dim' is 8, and 'partial_rotary_factor' 0.5"),
        ("llada2", {"topk_group": 5}, "5 are kept"),
        ("llada2", {"num_experts_per_tok": 5}, "5 experts cannot be chosen from 2 groups of 2"),
        ("llada_moe", {"clip_qkv": 8.0}, "'clip_qkv' is 8.0"),
        ("llada_moe", {"routed_scaling_factor": 2.5}, "'routed_scaling_factor' is 2.5"),
        ("llada_moe", {"moe_layer_freq": [0, 2]}, "must say 0 or 1 for each of 2 layers"),
        ("sdar", {"layer_types": ["full_attention", "sliding_attention"]}, "must have 'full_attention'"),
        ("sdar", {"surprise": 1}, "'surprise' is 1; it is unknown to this loader"),
        ("fast_dllm", {"bd_size": None}, "'bd_size' is None; it must be an integer"),
    ],
)
def test_a_setting_that_would_make_another_model_is_named(write_published, family, changes, named):
    with pytest.raises(CheckpointError, match=named):
        dtm.load_model(write_published(family, **changes), **keywords(family))


def test_a_configuration_of_transformers_5_is_read(write_published):
    new = {"rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"}, "dtype": "float32"}
    folder = write_published("sdar", layer_types=["full_attention"] * 2, **new)
    config = json.loads((folder / "config.json").read_text())
    del config["rope_theta"]
    (folder / "config.json").write_text(json.dumps(config))
    assert dtm.load_model(folder, **keywords("sdar")).config.rope_base == 10000.0


def test_transformers_5_states_the_rotating_share_among_the_rotary_parameters(write_published):
    rope = {"rope_theta": 10000.0, "rope_type": "default", "partial_rotary_factor": 0.5}
    folder = write_published("llada2", rope_parameters=rope)
    assert dtm.load_model(folder, **keywords("llada2")).config.rope_width == 4
    folder = write_published("llada2", name="other", rope_parameters=rope | {"partial_rotary_factor": 0.25})
    with pytest.raises(
        CheckpointError, match=r"'partial_rotary_factor' is 0\.5, and 0\.25 in 'rope_parameters'"
    ):
        dtm.load_model(folder, **keywords("llada2"))


def test_experts_beyond_the_layers_are_refused():
    with pytest.raises(ConfigError, match="blocks that a model of 2 layers does not have"):
        dtm.TransformerConfig(
            vocab_size=9, mask_id=8, eos_id=0, layers=2,
            experts=dtm.models.routing.Experts(count=4, active=1, width=8, layers=(2,)),
        )  # fmt: skip
