"""Decoding block-causal models: whole blocks of prompt, and a prefix cache that changes no token."""

from __future__ import annotations

import pytest
import torch
from networks import EOS, LENGTHS, MASK, asked, network

from dtm.engine import ORDERS, Decoder, generate
from dtm.errors import ConfigError
from dtm.models import Transformer, TransformerConfig
from dtm.random import stream
from dtm.records import Prompts

LENGTH = 10
SETTINGS = [
    {"order": ORDERS["uniform"]()},
    {"order": ORDERS["max-probability"](), "tokens_per_step": 2},
    {"order": ORDERS["sampled-confidence"](), "temperature": 0.5},
    {"order": ORDERS["uniform"](), "certainty": 0.6},
    {"order": ORDERS["uniform"](), "until_end": True},
]


def block_causal(block: int, shift: int = 0) -> Transformer:
    shape = TransformerConfig(
        vocab_size=12, mask_id=MASK, eos_id=EOS, width=32, layers=3, heads=4, kv_heads=2, ffn=48, shift=shift,
        attention_block=block,
    )  # fmt: skip
    built = Transformer(shape, stream(0, "test"))
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.mul_(10 if parameter.dim() == 2 else 1)
    return built.double().eval()


@pytest.mark.parametrize("block", [1, 3, 16])
@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("settings", SETTINGS)
def test_the_prefix_cache_changes_nothing(block, shift, settings):
    """Prompts of several widths, three completions of each, short last blocks, rows that end early."""
    model, prompts = block_causal(block, shift), asked(*LENGTHS).repeat(3)
    plain, cached = (
        generate(model, prompts, LENGTH, Decoder(**settings, block=block, cache=cache), batch=batch)
        for cache, batch in (("none", 15), ("prefix", 4))
    )
    assert torch.equal(plain.tokens, cached.tokens)
    assert torch.equal(plain.revealed_at, cached.revealed_at)
    torch.testing.assert_close(plain.log_prob, cached.log_prob, atol=1e-5, rtol=0)


@pytest.mark.parametrize("block", [1, 4])
@pytest.mark.parametrize("shift", [0, 1])
def test_rows_at_different_blocks_and_empty_prompts_share_a_batch(block, shift):
    model, prompts = block_causal(block, shift), asked(4, 0, 3, 4).repeat(4)

    def ended(rows, completions, written):
        return [count >= block * (1 + row % 3) for row, count in zip(rows, written, strict=True)]

    for given in (prompts, torch.zeros(9, 0, dtype=torch.long)):
        one, some = (
            generate(
                model, given, LENGTH, Decoder(block=block, cache=cache), seed=2, batch=batch, ended=ended
            )
            for cache, batch in (("none", 1), ("prefix", 5))
        )
        assert torch.equal(one.tokens, some.tokens)


def test_causal_attention_with_a_shift_is_autoregressive_sampling():
    """Greedy decoding against repeated passes over the tokens so far, which no mask token enters."""
    model, prompts = block_causal(1, shift=1), asked(5, 5, 5)
    decoder = Decoder(block=1, temperature=0.0, cache="prefix")
    done = generate(model, prompts, LENGTH, decoder)
    rows = prompts.tokens
    for _ in range(LENGTH):
        logits = model.logits(rows)[:, -1]
        logits[:, MASK] = -torch.inf
        rows = torch.cat([rows, logits.argmax(-1, keepdim=True)], dim=1)
    assert torch.equal(done.tokens, rows)


def test_passes_are_over_the_prompt_then_two_blocks_then_one():
    model, prompts = block_causal(4), asked(6, 6).repeat(2)
    seen: list[tuple[int, int]] = []
    hook = model.blocks[0].attention_norm.register_forward_pre_hook(
        lambda _, inputs: seen.append(tuple(inputs[0].shape[:2]))
    )
    decoder = Decoder(block=4, tokens_per_step=2, cache="prefix")
    generate(model, prompts, LENGTH, decoder)
    hook.remove()
    # Two prompts of 6 in 8 columns, each with a block of 4; the last block has 2 tokens and one step.
    assert seen == [(2, 12), (4, 4), (4, 8), (4, 4), (4, 8)]


def test_an_autoregressive_step_computes_one_position():
    model, prompts = block_causal(1, shift=1), asked(5, 5)
    computed: list[int] = []
    model.on_pass = lambda _, positions, attended, scored, trained: computed.append(positions)
    generate(model, prompts, 4, Decoder(block=1, cache="prefix"))
    assert [count for count in computed if count] == [2 * 6, 2, 2, 2]


def test_completions_begin_at_a_multiple_of_the_block():
    model, prompts = block_causal(4), asked(5, 3)
    done = generate(model, prompts, LENGTH, Decoder(block=4))
    assert done.tokens.shape == (2, 8 + LENGTH)
    assert torch.equal(done.tokens[:, 3:8], prompts.tokens)
    assert torch.equal(done.attention[:, 3:8], prompts.attention)
    assert not done.attention[:, :3].any()
    assert torch.equal(done.written, done.tokens[:, 8:])
    assert (done.revealed_at[:, :8] == -1).all()


def test_padding_to_whole_blocks_is_the_same_as_a_prompt_that_fits():
    """The row's number gives its noise; more padding in whole blocks must change no token."""
    model, prompts = block_causal(4), asked(5, 3)
    wide = Prompts(
        torch.nn.functional.pad(prompts.tokens, (7, 0)),
        torch.nn.functional.pad(prompts.attention, (7, 0)),
        prompts.views,
    )
    one, two = (generate(model, given, LENGTH, Decoder(block=4, cache="prefix")) for given in (prompts, wide))
    assert torch.equal(one.written, two.written)


@pytest.mark.parametrize("block", [None, 2, 8])
def test_other_blocks_than_the_models_are_refused(block):
    with pytest.raises(ConfigError, match=r"blocks of 4 .* Pass --decoding\.block 4"):
        generate(block_causal(4), asked(3), LENGTH, Decoder(block=block))


def test_a_cache_for_full_attention_is_refused():
    with pytest.raises(ConfigError, match=r"pass --decoding\.cache prefix"):
        generate(block_causal(4), asked(3), LENGTH, Decoder(block=4, cache="block"))


def test_full_attention_decodes_without_a_cache_where_a_prefix_is_asked_for():
    model, prompts = network("llada"), asked(*LENGTHS)
    plain, asked_for = (
        generate(model, prompts, LENGTH, Decoder(block=4, cache=cache)) for cache in ("none", "prefix")
    )
    assert torch.equal(plain.tokens, asked_for.tokens)


def test_the_prefix_cache_is_no_shortcut():
    decoder = Decoder(block=4, cache="prefix")
    assert decoder.is_exact
    assert decoder.without_shortcuts == decoder
