"""Decoding with cached keys and values: what is shared, what is refreshed, and when it is exact."""

from __future__ import annotations

import pytest
import torch
from networks import DECODERS, EOS, FAMILIES, LENGTH, LENGTHS, MASK, alone, asked, network

from dtm.engine import ORDERS, Decoder, generate
from dtm.errors import ConfigError
from dtm.records import Prompts
from dtm.verify.tabular import Tabular


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("settings", DECODERS)
@pytest.mark.parametrize("refresh", [1, 2, 9])
def test_a_model_of_one_layer_needs_no_refresh_so_its_cache_is_exact(family, settings, refresh):
    """Its keys and values are functions of the tokens alone, and outside the windows no token changes."""
    model, prompts = network(family, layers=1), asked(*LENGTHS)
    exact, cached = (
        generate(model, prompts, LENGTH, Decoder(**settings, **changes), seed=1, batch=3)
        for changes in ({}, {"cache": "block", "refresh": refresh})
    )
    assert torch.equal(exact.tokens, cached.tokens)
    assert torch.equal(exact.revealed_at, cached.revealed_at)


@pytest.mark.parametrize(("family", "length"), [("llada", 13), ("dream", 14), ("llada", 15)])
def test_a_short_last_block_is_the_same_beside_rows_at_other_blocks(family, length):
    """Rows end after as many blocks as their numbers say, so that blocks of all places meet in a batch."""
    model, prompts = network(family).double(), asked(*LENGTHS * 6)
    decoder = Decoder(order=ORDERS["max-probability"](), block=4, cache="block", refresh=2)

    def ended(rows, completions, written):
        return [count >= 4 * (1 + row % 4) for row, count in zip(rows, written, strict=True)]

    one, some = (
        generate(model, prompts, length, decoder, seed=2, batch=batch, ended=ended) for batch in (1, 5)
    )
    assert torch.equal(one.tokens, some.tokens)


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_changes_no_cached_row(family):
    model, prompts = network(family), asked(*LENGTHS)
    decoder = Decoder(order=ORDERS["max-probability"](), block=4, cache="block")
    padded = generate(model, prompts, LENGTH, decoder, seed=0, batch=4)
    bare = prompts.select([1])
    assert bare.attention.all()
    for row in range(
        len(prompts)
    ):  # the row keeps its number, and so its noise, if the others before it stay
        tokens = torch.stack([alone(prompts, row)] * (row + 1))
        unpadded = Prompts(tokens, torch.ones_like(tokens, dtype=torch.bool), [None] * (row + 1))
        done = generate(model, unpadded, LENGTH, decoder, seed=0, batch=4)
        assert torch.equal(done.tokens[row, -LENGTH:], padded.tokens[row, -LENGTH:])


def test_who_is_done_can_be_said_from_outside():
    model, prompts = network("llada"), asked(*LENGTHS)

    def ended(rows, completions, written):
        return [count >= 2 + 2 * row for row, count in zip(rows, written, strict=True)]

    decoder = Decoder(order=ORDERS["max-probability"](), block=2, cache="block")
    done = generate(model, prompts, LENGTH, decoder, seed=0, batch=3, ended=ended)
    whole = generate(model, prompts, LENGTH, decoder, seed=0, batch=3)
    for row in range(len(prompts)):
        end = min(2 + 2 * row, LENGTH)
        assert torch.equal(done.tokens[row, 7 : 7 + end], whole.tokens[row, 7 : 7 + end])
        assert (done.tokens[row, 7 + end :] == EOS).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_a_cached_pass_over_a_window_equals_the_whole_pass_if_nothing_else_has_changed(family):
    model, prompts = network(family, layers=3), asked(*LENGTHS)
    tokens = torch.cat([prompts.tokens, torch.full((len(prompts), LENGTH), MASK)], 1)
    attention = torch.cat([prompts.attention, torch.ones(len(prompts), LENGTH, dtype=torch.bool)], 1)
    start = torch.tensor([7, 9, 8, 12, 13])
    with torch.no_grad():
        cache = model.new_cache(len(prompts), tokens.shape[1])
        whole = model.hidden(tokens, attention, cache)
        torch.testing.assert_close(whole, model.hidden(tokens, attention))
        where = start[:, None] + torch.arange(4)
        window = model.hidden(tokens.gather(1, where), attention, cache, start)
    expected = whole.gather(1, where[..., None].expand(-1, -1, whole.shape[-1]))
    torch.testing.assert_close(window, expected, atol=1e-5, rtol=1e-4)


def test_fewer_refreshes_are_fewer_whole_passes():
    model, prompts = network("llada"), asked(4, 4, 4, 4)
    passes: list[tuple[int, int]] = []
    first = model.blocks[0].attention_norm
    hook = first.register_forward_pre_hook(lambda _, inputs: passes.append(inputs[0].shape[:2]))
    order = ORDERS["max-probability"]()
    decoder = Decoder(order=order, block=2, tokens_per_step=2, cache="block", refresh=3)
    generate(model, prompts, LENGTH, decoder, seed=0, batch=3)
    hook.remove()
    # Blocks 0 and 3 of five begin with whole rows of 14, the others with two blocks; then the fourth row.
    expected = [(3, 14), (3, 4), (3, 4), (3, 14), (3, 4), (1, 14), (1, 4), (1, 4), (1, 14), (1, 4)]
    assert [tuple(shape) for shape in passes] == expected


def test_completions_of_a_prompt_share_the_first_pass_wherever_they_join():
    """Six rows of two prompts through four places; rows 0 and 3 leave after one block, others after two."""
    model, prompts = network("llada"), asked(4, 4).repeat(3)
    passes: list[tuple[int, int]] = []
    hook = model.blocks[0].attention_norm.register_forward_pre_hook(
        lambda _, inputs: passes.append(tuple(inputs[0].shape[:2]))
    )
    decoder = Decoder(order=ORDERS["max-probability"](), block=4, tokens_per_step=4, cache="block")

    def ended(rows, completions, written):
        return [count >= (4 if row in (0, 3) else 8) for row, count in zip(rows, written, strict=True)]

    together = generate(model, prompts, LENGTH, decoder, seed=0, batch=4, ended=ended)
    # Three rows of the first prompt and one of the second; then two of the second join two that go on.
    assert passes == [(2, 14), (3, 14), (2, 14)]
    hook.remove()
    alone = generate(model, prompts, LENGTH, decoder, seed=0, batch=1, ended=ended)
    assert torch.equal(together.tokens, alone.tokens)


@pytest.mark.parametrize("refresh", [1, 2, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_completions_that_join_late_share_what_is_due(family, refresh):
    """Rows end after as many blocks as their numbers say, so some rows of a batch are due and others not."""
    model, prompts = network(family).double(), asked(*LENGTHS[:2]).repeat(5)
    decoder = Decoder(order=ORDERS["max-probability"](), block=2, cache="block", refresh=refresh)

    def ended(rows, completions, written):
        return [count >= 2 * (1 + row % 4) for row, count in zip(rows, written, strict=True)]

    one, some = (
        generate(model, prompts, LENGTH, decoder, seed=2, batch=batch, ended=ended) for batch in (1, 4)
    )
    assert torch.equal(one.tokens, some.tokens)
    assert torch.equal(one.revealed_at, some.revealed_at)


@pytest.mark.parametrize("settings", DECODERS)
def test_completions_of_a_prompt_are_what_they_are_alone(settings):
    model, prompts = network("dream"), asked(*LENGTHS[:2]).repeat(3)
    decoder = Decoder(**settings, cache="block")
    together, alone = (
        generate(model, prompts, LENGTH, decoder, seed=3, batch=batch) for batch in (len(prompts), 1)
    )
    assert torch.equal(together.tokens, alone.tokens)
    assert torch.equal(together.revealed_at, alone.revealed_at)


def test_a_model_without_keys_is_refused_a_cache_by_name():
    table = Tabular(torch.zeros(9, 2, 2))
    prompts = Prompts(torch.zeros(1, 0, dtype=torch.long), torch.ones(1, 0, dtype=torch.bool), [None])
    with pytest.raises(ConfigError, match=r"decoding\.cache block needs a native transformer"):
        generate(table, prompts, 2, Decoder(cache="block"), seed=0, batch=1)
