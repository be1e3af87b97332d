"""`generate` against the plain reference, row by row; rows that come and go; and its interface."""

from __future__ import annotations

import itertools

import pytest
import reference
import torch
from networks import DECODERS, EOS, FAMILIES, LENGTH, LENGTHS, MASK, Wavering, alone, asked, network

from dtm.engine import ORDERS, Decoder, at_end_token, generate
from dtm.errors import ConfigError
from dtm.records import Prompts

GRID = [
    {"order": order(), "block": block, "tokens_per_step": many, "temperature": temperature, **certainty}
    for order, block, many, temperature, certainty in itertools.product(
        (*ORDERS.values(), Wavering), (None, 1, 4), (1, 3), (0.0, 1.0), ({}, {"certainty": 0.6})
    )
]


def alternating(cases):
    """Each case with one of the families, such that both meet every value of a setting."""
    families = list(FAMILIES)
    return [(families[(place + place // 2) % 2], case) for place, case in enumerate(cases)]


def assert_equals_the_reference(model, prompts, decoder, seed, batch):
    done = generate(model, prompts, LENGTH, decoder, seed=seed, batch=batch)
    width = prompts.tokens.shape[1]
    for row in range(len(prompts)):
        expected = reference.complete(model, alone(prompts, row), LENGTH, decoder, seed, row)
        assert done.tokens[row, width:].tolist() == expected.tokens
        assert done.revealed_at[row, width:].tolist() == expected.revealed_at
        torch.testing.assert_close(
            done.log_prob[row, width:], torch.tensor(expected.log_prob), atol=1e-5, rtol=1e-5
        )
    assert torch.equal(done.tokens[:, :width], prompts.tokens)
    assert torch.equal(done.attention[:, :width], prompts.attention)
    assert (done.revealed_at[:, :width] == -1).all()
    assert (done.log_prob[:, :width] == 0).all()
    assert torch.equal(done.is_completion, (torch.arange(width + LENGTH) >= width).expand(len(prompts), -1))


@pytest.mark.parametrize(("family", "settings"), alternating(GRID))
def test_without_a_cache_every_row_is_what_the_plain_reference_makes_of_it_alone(family, settings):
    """Prompts of unequal length, more of them than fit the batch."""
    assert_equals_the_reference(network(family), asked(*LENGTHS), Decoder(**settings), seed=3, batch=4)


@pytest.mark.parametrize(("family", "settings"), alternating(DECODERS))
@pytest.mark.parametrize(("rows", "batch"), [(5, 1), (20, 20)])
def test_it_is_the_reference_at_any_batch_size(family, settings, rows, batch):
    """With 20 rows together the batch empties in steps of two rows."""
    prompts = asked(*(LENGTHS * 4)[:rows])
    assert_equals_the_reference(network(family), prompts, Decoder(**settings), seed=8, batch=batch)


@pytest.mark.parametrize(("family", "settings"), alternating(DECODERS))
@pytest.mark.parametrize("cached", [{}, {"cache": "block"}, {"cache": "block", "refresh": 2}])
@pytest.mark.parametrize("until_end", [False, True])
def test_a_row_does_not_depend_on_the_rows_beside_it(family, settings, cached, until_end):
    model, prompts = network(family), asked(*LENGTHS)
    decoder = Decoder(**settings, **cached, until_end=until_end)
    together = generate(model, prompts, LENGTH, decoder, seed=2, batch=len(prompts))
    again = generate(model, prompts, LENGTH, decoder, seed=2, batch=2)
    assert torch.equal(again.tokens, together.tokens)
    assert torch.equal(again.revealed_at, together.revealed_at)


@pytest.mark.parametrize("cache", ["none", "block"])
def test_rows_with_an_end_token_leave_and_the_rest_of_them_is_end_tokens(cache):
    model, prompts = network("llada"), asked(*LENGTHS * 6)
    decoder = Decoder(order=ORDERS["max-probability"](), block=2, cache=cache)
    whole = generate(model, prompts, LENGTH, decoder, seed=5, batch=6).tokens[:, -LENGTH:]
    sizes: list[int] = []
    decoder = Decoder(order=ORDERS["max-probability"](), block=2, cache=cache, until_end=True)
    first = model.blocks[0].attention_norm
    hook = first.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    done = generate(model, prompts, LENGTH, decoder, seed=5, batch=6)
    hook.remove()
    short = 0
    for full, cut, step in zip(whole, done.tokens[:, -LENGTH:], done.revealed_at[:, -LENGTH:], strict=True):
        found = (full == EOS).nonzero()
        end = LENGTH if len(found) == 0 else 2 * (int(found[0]) // 2) + 2  # the end of the block that has it
        short += end < LENGTH
        assert torch.equal(cut[:end], full[:end])
        assert (cut[end:] == EOS).all()
        assert sorted(step[:end].tolist()) == list(range(end))
        assert (step[end:] == end).all()
    assert 3 < short < len(prompts)
    # Leaving rows make room: fewer passes than all rows to their ends would take, in full batches at first.
    assert sum(sizes) < len(prompts) * LENGTH
    assert sizes[: len(prompts) // 6] == [6] * (len(prompts) // 6)


def test_an_end_token_counts_only_where_it_is_written():
    completions = torch.tensor([[1, EOS, 1, 1], [1, 1, EOS, 1], [1, 1, 1, 1]])
    assert at_end_token(EOS)([0, 1, 2], completions, [2, 2, 4]) == [True, False, False]


@pytest.mark.parametrize("rows", [0, 3])
def test_nothing_asked_is_a_prompt_too(rows):
    model, nothing = network("llada"), torch.zeros(rows, 0, dtype=torch.long)
    decoder = Decoder(order=ORDERS["max-probability"](), block=4, cache="block")
    done = generate(model, Prompts(nothing, nothing.bool(), [None] * rows), LENGTH, decoder, batch=2)
    assert done.tokens.shape == (rows, LENGTH)
    assert (done.tokens != MASK).all()


def test_completions_of_a_prompt_are_neighbours_and_plain_tokens_are_prompts():
    model, prompts, decoder = network("llada"), asked(4, 4, 4), Decoder(block=4)
    repeated = generate(model, prompts.repeat(3), LENGTH, decoder, seed=1)
    for given in (prompts, prompts.tokens):
        done = generate(model, given, LENGTH, decoder, seed=1, completions=3)
        assert torch.equal(done.tokens, repeated.tokens)
        assert torch.equal(done.log_prob, repeated.log_prob)
    assert len({tuple(row) for row in done.tokens.tolist()}) > 6
    other = generate(model, prompts, LENGTH, decoder, seed=2, completions=3)
    assert not torch.equal(other.tokens, done.tokens)


def test_a_row_that_finishes_a_block_goes_on_at_once_and_a_waiting_one_takes_a_free_place():
    """Rows of certain tokens take one step per block, others one per token; no row ever waits."""
    rows, model, prompts = list[int](), network("llada"), asked(*[7] * 40)
    model.register_forward_pre_hook(lambda _, inputs: rows.append(len(inputs[0])))
    decoder = Decoder(order=ORDERS["max-probability"](), block=2, certainty=0.6)
    done = generate(model, prompts, LENGTH, decoder, seed=0, batch=8)
    steps = done.revealed_at[:, -LENGTH:].amax(1) + 1
    assert steps.unique().numel() > 2  # rows go at their own pace
    full = rows.count(8)
    assert rows[:full] == [8] * full
    assert sum(rows) == steps.sum()


def test_a_batch_that_empties_takes_at_most_sixteen_sizes():
    sizes, model, prompts = list[int](), network("llada"), asked(*[7] * 50)
    model.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    decoder = Decoder(order=ORDERS["max-probability"](), block=1, certainty=0.6)

    def ended(rows, completions, written):
        return [count > row % LENGTH for row, count in zip(rows, written, strict=True)]

    generate(model, prompts, LENGTH, decoder, seed=0, batch=50, ended=ended)
    assert sizes == sorted(sizes, reverse=True)
    assert sizes == [50, 48, 40, 36, 32, 28, 20, 16, 12, 8]  # 50, 45, 40, … rounded up to fours


@pytest.mark.parametrize("changes", [{"batch": 0}, {"completions": 0}])
def test_counts_below_one_are_refused(changes):
    with pytest.raises(ConfigError, match="must be positive"):
        generate(network("llada"), asked(3), LENGTH, **changes)


@pytest.mark.parametrize(("batch", "seed"), [(34, 3), (40, 4)])
def test_ended_rows_that_keep_their_places_change_no_row(batch, seed):
    """More rows than places: some end behind others and some ahead of them, and up to two stay."""
    model, prompts = network("llada"), asked(*LENGTHS * 9)
    decoder = Decoder(order=ORDERS["max-probability"](), block=1, cache="block", until_end=True)
    single, together = (generate(model, prompts, LENGTH, decoder, seed=seed, batch=n) for n in (1, batch))
    assert torch.equal(together.tokens, single.tokens)
    assert torch.equal(together.revealed_at, single.revealed_at)
