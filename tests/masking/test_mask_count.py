"""Masks in form (C): every (block, k) cell once, evenly spread over a batch, completions alone."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
import torch

from dtm.errors import ConfigError
from dtm.masking import EveryBlock, MaskCount
from dtm.masking.mask_count import mask_cells
from dtm.random import stream
from dtm.records import Sequences

MASK = 99


def batch(lengths: list[int], prompt: int = 2) -> Sequences:
    """Rows of prompt and completion, padded on the left to one width."""
    width = prompt + max(lengths)
    place = torch.arange(width)
    is_completion = torch.stack([place >= width - length for length in lengths])
    attention = torch.stack([place >= width - length - prompt for length in lengths])
    return Sequences(torch.arange(len(lengths) * width).view(-1, width) % MASK, attention, is_completion)


@pytest.mark.parametrize("length", [1, 4, 7])
@pytest.mark.parametrize("block", [None, 1, 2, 3, 4, 10])
def test_every_block_and_count_has_exactly_one_cell(length, block):
    size = block or length
    blocks = [range(start, min(start + size, length)) for start in range(0, length, size)]
    order = torch.rand(length, length + 2, generator=stream(0, "test"))
    is_completion = (torch.arange(length + 2) >= 2).expand(length, -1)
    masked, eligible, count = mask_cells(is_completion, torch.arange(length), order, block)
    found = []
    for row in range(length):
        scored = {i - 2 for i in eligible[row].nonzero().flatten().tolist()}
        (home,) = [b for b, places in enumerate(blocks) if scored & set(places)]
        assert scored <= set(blocks[home])
        assert len(scored) == count[row]
        later = {place for places in blocks[home + 1 :] for place in places}
        assert {i - 2 for i in masked[row].nonzero().flatten().tolist()} == scored | later
        found.append((home, len(scored)))
    expected = [(b, k) for b, places in enumerate(blocks) for k in range(1, len(places) + 1)]
    assert sorted(found) == expected


def test_the_scored_positions_are_those_first_in_the_random_order():
    order = torch.tensor([[0.0, 0.9, 0.1, 0.5, 0.3]])
    is_completion = torch.tensor([[False, True, True, True, True]])
    _, eligible, _ = mask_cells(is_completion, torch.tensor([2]), order, None)
    assert eligible.tolist() == [[False, False, True, False, True]]


@pytest.mark.parametrize(("rows", "length"), [(12, 4), (30, 5), (7, 7)])
@pytest.mark.parametrize("seed", range(3))
def test_mask_counts_of_a_batch_are_spread_evenly(rows, length, seed):
    states = MaskCount().states(batch([length] * rows), MASK, stream(seed, "test"))
    counts = torch.bincount(states.eligible.sum(1), minlength=length + 1)
    assert counts.tolist() == [0, *[rows // length] * length]


def test_which_row_gets_which_count_is_left_to_chance():
    draws = [MaskCount().states(batch([4] * 4), MASK, stream(seed, "test")) for seed in range(400)]
    first = torch.stack([states.eligible[0].sum() for states in draws])
    assert torch.bincount(first, minlength=5)[1:].tolist() == pytest.approx([100] * 4, abs=45)


@pytest.mark.parametrize("block", [None, 1, 2, 3])
def test_prompt_and_padding_are_never_masked_and_the_rest_is_as_it_was(block):
    clean = batch([3, 5, 1, 4] * 5)
    for seed in range(5):
        states = MaskCount(block).states(clean, MASK, stream(seed, "test"))
        is_masked = states.tokens == MASK
        assert not (is_masked & ~clean.is_completion).any()
        assert torch.equal(states.tokens[~is_masked], clean.tokens[~is_masked])
        assert torch.equal(states.clean, clean.tokens)
        assert torch.equal(states.attention, clean.attention)
        assert (states.eligible <= is_masked).all()


@pytest.mark.parametrize("block", [None, 2])
def test_a_row_weighs_its_length_over_its_count(block):
    lengths = [3, 5, 1, 4] * 3
    states = MaskCount(block).states(batch(lengths), MASK, stream(0, "test"))
    for length, eligible, weight in zip(lengths, states.eligible, states.row_weight.tolist(), strict=True):
        assert weight == pytest.approx(length / int(eligible.sum()))
    assert states.length == 5
    assert states.batch_rows == len(lengths)


def test_the_weighted_batch_sums_to_one_unit_for_each_position():
    """Σ_S of 1/k is 1 in every row: a loss of 1 at each scored position integrates to L nats."""
    lengths = [3, 5, 2, 4]
    states = MaskCount(2).states(batch(lengths), MASK, stream(0, "test"))
    total = states.row_weight * states.eligible.sum(1)
    assert total.tolist() == pytest.approx(lengths)


def test_a_row_is_trained_up_to_the_end_of_the_block_in_which_it_ends():
    """Ends at positions 0, 3, 4 and nowhere, in blocks of four; the last block is shorter."""
    end, clean = 50, batch([10] * 4, prompt=1)
    tokens = clean.tokens.clone()
    for row, place in enumerate((0, 3, 4)):
        tokens[row, 1 + place :] = end
    ended = Sequences(tokens, clean.attention, clean.is_completion)
    assert MaskCount(4, end).trained_length(ended).tolist() == [4, 4, 8, 10]
    assert MaskCount(4).trained_length(ended).tolist() == [10] * 4
    assert MaskCount(None, end).trained_length(ended).tolist() == [10] * 4
    reached = torch.zeros(4, 10, dtype=torch.bool)
    for seed in range(40):
        states = MaskCount(4, end).states(ended, MASK, stream(seed, "test"))
        reached |= states.eligible[:, 1:]
    assert reached.sum(1).tolist() == [4, 4, 8, 10]


def test_masks_follow_their_generator():
    clean = batch([4] * 6)
    one, same, other = (MaskCount().states(clean, MASK, stream(seed, "test")).tokens for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_subsets_of_one_size_are_equally_likely():
    drawn = []
    for seed in range(300):
        states = MaskCount().states(batch([4] * 8, prompt=0), MASK, stream(seed, "subsets"))
        drawn += [tuple(row.nonzero().flatten().tolist()) for row in states.eligible if row.sum() == 2]
    assert len(drawn) == 600
    for subset in itertools.combinations(range(4), 2):
        assert drawn.count(subset) == pytest.approx(100, abs=45)


def test_a_block_of_nothing_is_refused():
    with pytest.raises(ConfigError, match="block of at least 1, got 0"):
        MaskCount(0)


@pytest.mark.parametrize("block", [None, 4])
def test_with_a_skew_the_masked_share_is_the_largest_of_uniform_draws(block):
    length, rows, skew = 10, 4000, 3.0
    clean = batch([length] * rows)
    states = MaskCount(block, skew=skew).states(clean, MASK, stream(0, "test"))
    size = block or length
    for start in range(0, length, size):
        stop = min(start + size, length)
        # A block is drawn as often as without a skew, and has k masks with chance (k/B)^p - ((k-1)/B)^p.
        own = (states.eligible[:, 2 + start : 2 + stop].sum(1)).bincount(minlength=stop - start + 1)
        drawn = own[1:].double() / rows
        counts = torch.arange(stop - start + 1) / (stop - start)
        expected = (stop - start) / length * (counts**skew).diff()
        torch.testing.assert_close(drawn, expected.double(), atol=0.02, rtol=0)


def test_a_skew_keeps_blocks_that_end_early_and_completions_inside_a_block():
    clean = batch([3, 7, 10])
    for seed in range(50):
        masking = MaskCount(4, in_columns=True, skew=2.0)
        states = masking.states(clean, MASK, stream(seed, "test"))
        even = MaskCount(4, in_columns=True).states(clean, MASK, stream(seed, "test"))
        assert (states.eligible.sum(1) >= even.eligible.sum(1)).all()
        columns = [torch.unique(row.nonzero().flatten() // 4) for row in states.eligible]
        assert all(len(blocks) == 1 for blocks in columns)
        assert [blocks.tolist() for blocks in columns] == [
            torch.unique(row.nonzero().flatten() // 4).tolist() for row in even.eligible
        ]


@pytest.mark.parametrize("block", [None, 4])
def test_a_draw_that_rounds_up_to_the_length_masks_one_position(block, monkeypatch):
    """(stratum + jitter) / rows · length is the length in float32 if the jitter is the largest below 1."""
    largest = torch.tensor(1 - 2.0**-24)
    monkeypatch.setattr(torch, "rand", lambda shape, **_: largest.expand(shape).clone())
    clean = batch([12] * 384)
    for skew in (1.0, 2.0):
        counts = MaskCount(block, skew=skew).states(clean, MASK, stream(0, "test")).eligible.sum(1)
        assert counts.min() == 1


@pytest.mark.parametrize("masking", [MaskCount, partial(EveryBlock, 4)])
@pytest.mark.parametrize("skew", [0.0, 0.5, float("nan")])
def test_a_skew_below_one_is_refused(masking, skew):
    with pytest.raises(ConfigError, match="at least 1"):
        masking(skew=skew)
