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
    blocks = Blocks.of(width, completion, Decoder(block=size, tokens_per_step=2))
    rows = [Row(10 + number, blocks.size_of(number), number) for number in range(len(blocks.schedule))]
    batch = Batch.of(rows, blocks, 0, None, torch.device("cpu"))
    assert batch.where[batch.inside].tolist() == list(range(width, width + completion))
    assert (batch.where < width + completion).all()
    assert batch.inside.sum(1).tolist() == [row.left for row in rows]
    assert [blocks.end(number) for number in range(len(rows))] == [
        int(where[inside].max()) + 1 for where, inside in zip(batch.where, batch.inside, strict=True)
    ]
    table = blocks.table(torch.device("cpu"))
    assert table.sum(1).tolist() == [row.left for row in rows]
    assert table.max() <= 2


def test_rows_keep_their_own_places():
    blocks = Blocks.of(1, 6, Decoder(block=2))
    rows = [Row(7, 2, block=1, step=1, earlier=4), Row(3, 2, block=2)]
    mask = torch.arange(8 * 7).view(8, 7) % 2 == 0
    batch = Batch.of(rows, blocks, 0, mask, torch.device("cpu"))
    assert batch.places == [(7, 1), (3, 2)]
    assert batch.where.tolist() == [[3, 4], [5, 6]]
    assert (batch.step.tolist(), batch.earlier.tolist()) == ([1, 0], [4, 0])
    assert torch.equal(batch.attention_mask, mask[[7, 3]])
