"""Masks inside the blocks of block-causal attention, where a completion may begin inside one."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import pytest
import torch

from dtm.errors import ConfigError
from dtm.masking import (
    ActiveBlock,
    Coupled,
    EveryBlock,
    FullMask,
    LeftToRight,
    MaskCount,
    Planned,
    SampledSteps,
    TraceSegments,
    in_blocks,
)
from dtm.masking.mask_count import mask_cells
from dtm.padding import leads
from dtm.random import stream
from dtm.records import Sequences

BLOCK, WIDTH, MASK = 4, 12, 9


def rows(*starts: int) -> Sequences:
    """Completions from these columns on, to the end of 12."""
    tokens = torch.arange(WIDTH).expand(len(starts), -1) % MASK
    is_completion = torch.arange(WIDTH) >= torch.tensor(starts)[:, None]
    return Sequences(tokens, torch.ones_like(is_completion), is_completion)


@pytest.mark.parametrize("start", [1, 3, 4, 6])
def test_every_cell_is_one_block_and_one_count(start):
    clean = rows(start)
    lead, found = leads(clean.is_completion, BLOCK), Counter()
    for cell in range(WIDTH - start):
        order = torch.rand(1, WIDTH, generator=stream(cell, "order"))
        masked, scored, count = mask_cells(clean.is_completion, lead + cell, order, BLOCK, lead)
        block = set((scored[0].nonzero().squeeze(1) // BLOCK).tolist())
        assert len(block) == 1
        found[block.pop(), int(count)] += 1
        assert (masked[0] & (torch.arange(WIDTH) < start)).sum() == 0
    sizes = {b: (b + 1) * BLOCK - max(b * BLOCK, start) for b in range(start // BLOCK, 3)}
    assert found == Counter({(b, k): 1 for b, size in sizes.items() for k in range(1, size + 1)})


@pytest.mark.parametrize("make", [lambda: MaskCount(BLOCK, in_columns=True), lambda: EveryBlock(BLOCK)])
def test_weights_sum_to_the_positions_of_a_row(make):
    """With a loss of 1 at every position, form (C) is the number of completion positions, exactly."""
    clean = rows(1, 3, 4, 6)
    for seed in range(5):
        states = make().states(clean, MASK, stream(seed, "masks"))
        total = torch.zeros(4).index_add(0, states.row, states.weight)
        torch.testing.assert_close(total, clean.is_completion.sum(1).float())


def test_an_end_inside_the_first_block_trains_on_that_block_alone():
    clean = rows(6)
    tokens = clean.tokens.clone()
    tokens[0, 7] = 8
    ended = Sequences(tokens, clean.attention, clean.is_completion)
    assert MaskCount(BLOCK, 8, in_columns=True).trained_length(ended).tolist() == [2]
    assert MaskCount(BLOCK, 8).trained_length(ended).tolist() == [4]


@pytest.mark.parametrize(("n", "size"), [(6, 2), (7, 3), (5, 5)])
def test_a_subset_of_all_positions_has_the_weight_of_form_c_in_each_block(n, size):
    for inside in range(1, size + 1):
        total = sum(
            Fraction(1, k) * Fraction(math.comb(n - size, k - inside), math.comb(n, k))
            for k in range(inside, n - size + inside + 1)
        )
        assert total == Fraction(1, inside * math.comb(size, inside))


def test_active_blocks_are_columns():
    clean = rows(1, 3, 4, 6)
    masking = in_blocks(Planned(ActiveBlock(BLOCK, rows=3, scores="active")), BLOCK)
    states = masking.states(clean, MASK, stream(0, "masks"))
    assert not states.doubled
    for row in range(len(states)):
        assert len(set((states.eligible[row].nonzero().squeeze(1) // BLOCK).tolist())) == 1


def test_plans_of_any_order_are_scored_given_the_clean_blocks_before():
    masking = in_blocks(Planned(FullMask()), BLOCK)
    states = masking.states(rows(3, 6), MASK, stream(0, "masks"))
    assert states.doubled
    assert states.context is states.clean
    assert in_blocks(Planned(Coupled()), BLOCK).doubled
    for plan in (TraceSegments(), SampledSteps(2), LeftToRight(2)):
        assert not in_blocks(Planned(plan), BLOCK).doubled
    assert in_blocks(Planned(FullMask()), None) == Planned(FullMask())


def test_masks_outside_the_models_blocks_are_refused():
    for masking in (MaskCount(), MaskCount(8), EveryBlock(8)):
        with pytest.raises(ConfigError, match=r"blocks of 4.*--method\.block decoding"):
            in_blocks(masking, BLOCK)
    with pytest.raises(ConfigError, match="need block-causal attention"):
        in_blocks(EveryBlock(4), None)
