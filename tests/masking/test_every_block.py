"""Masks in every block at once: the same expectation as one block at a time, and the same bound."""

from __future__ import annotations

import itertools
from dataclasses import replace
from fractions import Fraction

import pytest
import torch

from dtm.errors import ConfigError
from dtm.masking import EveryBlock, MaskCount
from dtm.masking.every_block import mask_blocks
from dtm.masking.mask_count import mask_cells
from dtm.methods.mdm import mdm_loss
from dtm.models import Transformer, TransformerConfig
from dtm.padding import aligned
from dtm.random import stream
from dtm.records import MaskedStates, Sequences

MASK, PROMPT = 10, 4


def rows(count: int, length: int) -> Sequences:
    tokens = torch.randint(1, MASK, (count, PROMPT + length), generator=stream(0, "rows"))
    is_completion = (torch.arange(PROMPT + length) >= PROMPT).expand(count, -1)
    return Sequences(tokens, torch.ones_like(tokens, dtype=torch.bool), is_completion)


def cells_of(length: int, block: int) -> MaskedStates:
    """Every state of `MaskCount`, each with its probability as a factor of its weight."""
    clean, found = rows(1, length), []
    for cell, permutation in itertools.product(range(length), itertools.permutations(range(length))):
        order = torch.tensor([[0.0] * PROMPT + [p / length for p in permutation]])
        found.append(mask_cells(clean.is_completion, torch.tensor([cell]), order, block))
    masked, eligible, count = (torch.cat(parts) for parts in zip(*found, strict=True))
    return states_of(clean, masked, eligible, length / count / len(found))


def blocks_of(length: int, block: int) -> MaskedStates:
    """Every state of `EveryBlock`, likewise: counts of all blocks and orders of all positions."""
    clean, found, chances = rows(1, length), [], []
    sizes = [min(block, length - start) for start in range(0, length, block)]
    for counts in itertools.product(*(range(size) for size in sizes)):
        share = torch.tensor(
            [[(count + 0.5) / size for count, size in zip(counts, sizes, strict=True)]]
        ).double()
        orders = list(itertools.permutations(range(length)))
        for permutation in orders:
            order = torch.tensor([[0.0] * PROMPT + [p / length for p in permutation]]).double()
            found.append(
                mask_blocks(
                    clean.is_completion, torch.tensor([length]), share, order, block, torch.zeros(1).long()
                )
            )
            chances.append(float(Fraction(1, len(orders) * torch.tensor(sizes).prod().item())))
    masked, weight = (torch.cat(parts) for parts in zip(*found, strict=True))
    states = states_of(clean, masked, masked, torch.tensor(chances).double())
    return replace(states, position_weight=weight, doubled=True)


def states_of(clean: Sequences, masked, eligible, weight) -> MaskedStates:
    count = len(masked)
    return MaskedStates(
        tokens=torch.where(masked, MASK, clean.tokens),
        clean=clean.tokens.expand(count, -1),
        attention=None,
        eligible=eligible,
        row_weight=weight.double(),
        row_length=clean.is_completion.sum(1).expand(count),
        length=int(clean.is_completion.sum()),
        batch_rows=1,
        batch_length=clean.is_completion.sum(),
    )


def model(block: int, shift: int) -> Transformer:
    shape = TransformerConfig(
        vocab_size=11, mask_id=MASK, eos_id=0, width=16, layers=2, heads=2, ffn=16, shift=shift,
        attention_block=block,
    )  # fmt: skip
    built = Transformer(shape, stream(0, "test")).double().eval()
    with torch.no_grad():
        for parameter in built.parameters():
            if parameter.dim() == 2:
                parameter.mul_(10)
    return built


@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize(("length", "block"), [(4, 2), (3, 2), (3, 1), (4, 4)])
def test_the_expected_loss_of_the_doubled_pass_is_that_of_one_block_at_a_time(length, block, shift):
    """Both expectations are exact sums over all masks; the losses are the model's own."""
    network = model(block, shift)
    one, every = (mdm_loss(network, states) for states in (cells_of(length, block), blocks_of(length, block)))
    torch.testing.assert_close(every, one, atol=1e-6, rtol=0)


@pytest.mark.parametrize(("length", "block"), [(5, 2), (6, 4), (3, 4)])
def test_counts_are_uniform_and_weights_are_size_over_count(length, block):
    clean = rows(4096, length)
    states = EveryBlock(block).states(clean, MASK, stream(0, "masks"))
    assert torch.equal(states.eligible, states.tokens == MASK)
    assert states.context is states.clean
    for start in range(PROMPT, PROMPT + length, block):
        columns = slice(start, min(start + block, PROMPT + length))
        size = columns.stop - columns.start
        count = states.eligible[:, columns].sum(1)
        assert count.min() == 1
        assert count.max() == size
        share = torch.bincount(count)[1:] / len(clean)
        assert (share - 1 / size).abs().max() < 0.001  # strata of rows: far closer than chance
        assert (states.eligible[:, columns].double().mean(0) - (size + 1) / (2 * size)).abs().max() < 0.03
        expected = (size / count)[:, None].expand(-1, size)
        torch.testing.assert_close(states.position_weight[:, columns], expected.float())


def test_a_single_row_spreads_the_counts_over_its_blocks():
    states = EveryBlock(4).states(rows(1, 16), MASK, stream(0, "masks"))
    counts = states.eligible[0, PROMPT:].view(4, 4).sum(1)
    assert sorted(counts.tolist()) == [1, 2, 3, 4]


def test_blocks_after_the_end_are_not_trained_on():
    clean = rows(2, 6)
    clean.tokens[0, PROMPT + 1] = 0
    states = EveryBlock(2, end_id=0).states(clean, MASK, stream(0, "masks"))
    assert states.row_length.tolist() == [2, 6]
    assert not states.eligible[0, PROMPT + 2 :].any()
    assert states.eligible[1, PROMPT + 4 :].any()
    assert torch.equal(states.row_length, MaskCount(2, 0).trained_length(clean))


def test_parts_of_a_batch_keep_their_weights_and_a_factor_on_rows_reaches_positions():
    states = EveryBlock(2).states(rows(4, 6), MASK, stream(0, "masks"))
    part = states.select(slice(1, 3))
    assert torch.equal(part.weight, states.weight[(states.row >= 1) & (states.row < 3)])
    twice = replace(states, row_weight=2 * states.row_weight)
    assert torch.equal(twice.weight, 2 * states.weight)


def test_masks_of_one_block_weigh_positions_by_their_row():
    states = MaskCount(2).states(rows(4, 6), MASK, stream(0, "masks"))
    assert torch.equal(states.weight, states.row_weight[states.row])
    assert states.context is None


def test_blocks_are_columns_and_rows_can_be_padded_to_begin_one():
    clean = rows(2, 6)
    first = PROMPT // 3 * 3 + 3 - PROMPT  # completion positions of the block in which the prompt ends
    states = EveryBlock(3).states(clean, MASK, stream(0, "masks"))
    masked = states.eligible[:, PROMPT : PROMPT + first]
    torch.testing.assert_close(
        states.position_weight[:, PROMPT : PROMPT + first][masked],
        (first / masked.sum(1, keepdim=True)).expand_as(masked)[masked],
    )
    padded = aligned(clean, 3)
    assert padded.tokens.shape == (2, 12)
    assert not padded.attention[:, :2].any()
    assert EveryBlock(3).states(padded, MASK, stream(0, "masks")).length == 6


def test_full_attention_refuses_masks_in_every_block():
    shape = TransformerConfig(vocab_size=11, mask_id=MASK, eos_id=0, width=16, layers=1, heads=2, ffn=16)
    states = EveryBlock(2).states(rows(4, 6), MASK, stream(0, "masks"))
    with pytest.raises(ConfigError, match="full attention has no pass over x_t and x_1"):
        mdm_loss(Transformer(shape, stream(0, "test")), states)


def test_with_a_skew_the_masked_share_is_the_largest_of_uniform_draws():
    length, block, rows, skew = 8, 4, 2000, 2.0
    is_completion = torch.ones(rows, length, dtype=torch.bool)
    clean = Sequences(torch.zeros(rows, length, dtype=torch.long), is_completion, is_completion)
    states = EveryBlock(block, skew=skew).states(clean, 99, stream(0, "test"))
    for start in range(0, length, block):
        drawn = states.eligible[:, start : start + block].sum(1).bincount(minlength=block + 1)[1:] / rows
        expected = ((torch.arange(block + 1) / block) ** skew).diff()
        torch.testing.assert_close(drawn, expected, atol=0.02, rtol=0)
