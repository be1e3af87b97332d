"""Merged adapters: the same model in one product, new layers for what changes, and nothing to undo."""

from __future__ import annotations

import pytest
import torch

import dtm
from dtm.engine import Decoder, SampledConfidence, generate
from dtm.models import LoRA, Policy, Transformer, TransformerConfig
from dtm.models.block import Block
from dtm.models.merging import merged
from dtm.random import stream
from dtm.records import MaskedStates, Prompts

TOKENS = torch.randint(0, 10, (3, 7), generator=stream(0, "tokens"))
LLADA = {"family": "llada"}
DREAM = {"qkv_bias": True, "kv_heads": 2, "shift": 1}


def policy(**changes) -> Policy:
    """A policy whose adapters have been trained somewhere."""
    sizes = {"vocab_size": 11, "mask_id": 10, "eos_id": 0, "width": 32, "layers": 2, "heads": 4, "ffn": 48}
    return moved(
        Policy(Transformer(TransformerConfig(**sizes | changes), stream(0, "test")), lora=LoRA(rank=4))
    )


def moved(made: Policy) -> Policy:
    weights = made.weights(made.student)
    noise = stream(1, "adapters")
    drawn = {name: 0.3 * torch.randn(value.shape, generator=noise) for name, value in weights.items()}
    made.load_weights(made.student, drawn)
    made.promote()
    return made


@pytest.mark.parametrize("changes", [{}, LLADA, DREAM, {**DREAM, "head_width": 12, "qk_norm": True}])
def test_a_merged_model_is_the_adapted_one(changes):
    made = policy(**changes)
    one = merged(made.teacher)
    where = torch.ones_like(TOKENS, dtype=torch.bool)
    torch.testing.assert_close(
        one(TOKENS, None, where), made.teacher(TOKENS, None, where), atol=1e-5, rtol=1e-5
    )
    assert (one(TOKENS, None, where) - made.base(TOKENS, None, where)).abs().max() > 0.01
    assert not any("lora" in name for name, _ in one.named_parameters())


@pytest.mark.parametrize("targets", ["all", "published", "v"])
@pytest.mark.parametrize("changes", [LLADA, DREAM, {**DREAM, "head_width": 12}])
def test_projections_of_one_input_become_one_product(changes, targets):
    made = moved(Policy(policy(**changes).base, lora=LoRA(rank=4, targets=(targets,))))
    one = merged(made.teacher)
    expected = dict(made.teacher.named_modules())
    x = torch.randn(2, 5, 32, generator=stream(0, "x"))
    for number, block in enumerate(one.blocks):
        heads = 4 + 2 * (made.base.config.kv_heads or 4)
        assert block.attention.qkv.weight.shape == (heads * (made.base.config.head_width or 8), 32)
        for name, found in zip("qkv", block.attention._projected(x), strict=True):
            wanted = expected[f"blocks.{number}.attention.{name}"](x)
            torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    assert (one.blocks[0].gate_up is None) == (targets == "v")


@pytest.mark.parametrize("cache", ["none", "block"])
@pytest.mark.parametrize("changes", [LLADA, DREAM])
def test_a_merged_model_writes_what_the_adapted_one_writes(changes, cache):
    made = policy(**changes)
    prompts = Prompts(TOKENS, torch.ones_like(TOKENS, dtype=torch.bool), [None] * len(TOKENS))
    decoder = Decoder(order=SampledConfidence(), block=4, tokens_per_step=2, cache=cache)
    found, expected = (
        generate(model, prompts, 12, decoder, batch=2).tokens
        for model in (merged(made.teacher), made.teacher)
    )
    assert torch.equal(found, expected)
    other = generate(made.base, prompts, 12, decoder, batch=2).tokens
    assert not torch.equal(other, expected)


@pytest.mark.parametrize("changes", [LLADA, DREAM])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])  # not every CPU multiplies in bfloat16
def test_what_is_added_in_place_is_what_is_added(changes, dtype):
    one = merged(policy(**changes).teacher).to(dtype)
    before = {name: value.clone() for name, value in one.state_dict().items()}

    def passes() -> list[torch.Tensor]:
        with torch.no_grad(), torch.autocast("cpu", torch.float16, enabled=dtype == torch.float16):
            cache, start = one.new_cache(3, 7), torch.tensor([1, 0, 3])
            window = TOKENS.gather(1, start[:, None] + torch.arange(2))
            return [
                one.hidden(TOKENS),
                one.hidden(TOKENS, at=torch.tensor([2, 9, 20])),
                one.hidden(TOKENS, cache=cache),
                one.hidden(window, None, cache, start),
            ]

    in_place = passes()
    one.adds_in_place = False
    near = {"atol": 1e-5, "rtol": 1e-5} if dtype == torch.float32 else {"atol": 0.02, "rtol": 0.02}
    for found, wanted in zip(in_place, passes(), strict=True):
        assert found.dtype == wanted.dtype
        torch.testing.assert_close(found, wanted, **near)
    assert all(torch.equal(value, before[name]) for name, value in one.state_dict().items())


def test_products_are_added_in_place_only_where_one_product_can_do_it():
    one = merged(policy(family="llada").teacher)
    x, mixed = torch.randn(2, 2, 5, 32, generator=stream(0, "x"))
    block = one.blocks[0]
    assert block.can_add_in_place(x, mixed)
    assert block.feed_in_place(x, mixed, Block.widened) is x
    assert not block.can_add_in_place(x, mixed.half())
    assert not block.can_add_in_place(x.clone().requires_grad_(), mixed)
    assert not merged(policy(family="llada").teacher, fp8=True).blocks[0].can_add_in_place(x, mixed)


def test_a_sum_is_rounded_once_also_where_rollouts_compute_in_less():
    made = policy(family="llada")
    plain = merged(made.teacher).state_dict()
    with torch.autocast("cpu", torch.float16):
        among = merged(made.teacher).state_dict()
    assert all(torch.equal(value, among[name]) for name, value in plain.items())


def test_models_that_are_saved_keep_the_names_of_their_layers():
    made = policy()
    merged(made.teacher)
    assert not any("qkv" in name or "gate_up" in name for name in made.teacher.state_dict())
    assert "blocks.0.attention.q.weight" in Transformer(made.base.config).state_dict()


def test_merging_touches_no_model_and_shares_what_has_no_adapter():
    made = Policy(policy().base, lora=LoRA(rank=4, targets=("q",)))
    before = {name: value.clone() for name, value in made.base.state_dict().items()}
    hidden = made.student.hidden(TOKENS).detach().clone()
    one = merged(moved(made).teacher)
    one.hidden(TOKENS)
    del one
    for name, value in made.base.state_dict().items():
        assert torch.equal(value, before[name])
    again = merged(made.teacher)
    assert again.embedding is made.base.embedding
    assert again.blocks[1].up is made.base.blocks[1].up
    assert again.blocks[1].attention.out is made.base.blocks[1].attention.out
    assert not hasattr(again.blocks[1].attention, "q")
    assert not any(parameter.requires_grad for parameter in again.parameters())
    assert all(parameter.requires_grad for parameter in made.trained())
    assert hidden.shape == made.student.hidden(TOKENS).shape


def test_four_bit_weights_are_unpacked_and_merged(write_hub):
    pytest.importorskip("bitsandbytes")
    base = dtm.load_model(write_hub("llada", d_model=64, mlp_hidden_size=128), nf4=True)
    made = moved(Policy(base, lora=LoRA(rank=4, targets=("published",))))
    where = torch.ones_like(TOKENS, dtype=torch.bool)
    found, expected = (model(TOKENS, None, where) for model in (merged(made.teacher), made.teacher))
    torch.testing.assert_close(found, expected, atol=1e-3, rtol=1e-3)


def test_pi_a_is_merged_where_asked_once_for_each_promotion_and_updates_read_it_too():
    base = policy().base
    plain, made = (moved(Policy(base, lora=LoRA(rank=4), merge=merge)) for merge in (False, True))
    assert plain.pi_a() is plain.teacher
    one = made.pi_a()
    assert one is made.pi_a()
    assert one is not made.teacher
    scored = torch.ones_like(TOKENS, dtype=torch.bool)
    length = torch.full((len(TOKENS),), TOKENS.shape[1])
    states = MaskedStates(
        TOKENS, TOKENS, None, scored, torch.ones(len(TOKENS)), length, 7, len(TOKENS), length.sum()
    )
    torch.testing.assert_close(made.log_pi_a(states), plain.log_pi_a(states), atol=1e-5, rtol=1e-5)
    calls = []
    one.register_forward_hook(lambda *_: calls.append(1))
    made.log_pi_a(states)
    made.rows_a(states)
    assert len(calls) == 2
    with torch.no_grad():
        made.trained()[0].add_(1.0)
    made.promote()
    assert made.pi_a() is not one
    expected = made.teacher(TOKENS, None, scored)
    torch.testing.assert_close(made.log_pi_a(states), expected, atol=1e-4, rtol=1e-4)
    assert (expected - plain.log_pi_a(states)).abs().max() > 1e-3


def test_a_teacher_without_an_adapter_has_nothing_to_merge():
    whole = Policy(Transformer(policy().base.config, stream(0, "test")), merge=True)
    assert whole.pi_a() is whole.teacher
