"""How completions are cut into blocks, and which positions a batch of rows works on."""

from __future__ import annotations

import itertools

import pytest
import torch

from dtm.engine import Decoder
from dtm.engine.blocks import Batch, Blocks, Row


@pytest.mark.parametrize(
    ("width", "completion", "size"), list(itertools.product((0, 3), (5, 9), (None, 2, 3, 5, 20)))
)
def test_blocks_cover_the_completion_one_after_the_other(width, completion, size):
    blocks = Blocks.of([width], width + completion, Decoder(block=size, tokens_per_step=2))
    rows = [Row(0, blocks.size_of(0, number), number) for number in range(blocks.count(0))]
    batch = Batch.of(rows, blocks, 0, None, torch.device("cpu"))
    assert batch.where[batch.inside].tolist() == list(range(width, width + completion))
    assert (batch.where < width + completion).all()
    assert batch.inside.sum(1).tolist() == [row.left for row in rows]
    assert [blocks.end(0, number) for number in range(len(rows))] == [
        int(where[inside].max()) + 1 for where, inside in zip(batch.where, batch.inside, strict=True)
    ]
    table = blocks.table(torch.device("cpu"))[batch.kind]
    assert table.sum(1).tolist() == [row.left for row in rows]
    assert table.max() <= 2


def test_rows_keep_their_own_places():
    blocks = Blocks.of([1] * 8, 7, Decoder(block=2))
    rows = [Row(7, 2, block=1, step=1, earlier=4), Row(3, 2, block=2)]
    mask = torch.arange(8 * 7).view(8, 7) % 2 == 0
    batch = Batch.of(rows, blocks, 0, mask, torch.device("cpu"))
    assert batch.places == [(7, 1), (3, 2)]
    assert batch.where.tolist() == [[3, 4], [5, 6]]
    assert (batch.step.tolist(), batch.earlier.tolist()) == ([1, 0], [4, 0])
    assert torch.equal(batch.attention_mask, mask[[7, 3]])


def test_blocks_in_columns_begin_inside_the_prompt():
    """Two rows of 12 columns whose completions begin at 2 and 5: the first blocks have 2 and 3 tokens."""
    blocks = Blocks.of([2, 5], 12, Decoder(block=4, tokens_per_step=2), in_columns=True)
    assert [blocks.count(row) for row in (0, 1)] == [3, 2]
    assert [blocks.size_of(0, block) for block in range(3)] == [2, 4, 4]
    assert [blocks.size_of(1, block) for block in range(2)] == [3, 4]
    batch = Batch.of([Row(0, 2), Row(1, 3)], blocks, 0, None, torch.device("cpu"))
    assert batch.where.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert batch.inside.int().tolist() == [[0, 0, 1, 1], [0, 1, 1, 1]]
    assert blocks.table(torch.device("cpu"))[batch.kind].tolist() == [[2, 0], [2, 1]]
