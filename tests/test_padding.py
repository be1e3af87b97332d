"""Rows of different widths, joined."""

from __future__ import annotations

import torch

from dtm.padding import concatenate, join_prompts
from dtm.records import Prompts


def test_joined_prompts_are_as_wide_as_the_widest_and_masked_where_they_are_padded():
    narrow = Prompts(torch.tensor([[7]]), torch.tensor([[True]]), ["one"], {"answer": [10]})
    wide = Prompts(torch.tensor([[1, 2, 3]]), torch.ones(1, 3).bool(), ["two"], {"answer": [20]})
    joined = join_prompts([narrow, wide])
    assert joined.tokens[joined.attention].tolist() == [7, 1, 2, 3]
    assert joined.attention.tolist() == [[False, False, True], [True, True, True]]
    assert (joined.views, joined.columns) == (["one", "two"], {"answer": [10, 20]})


def test_joined_rollouts_are_padded_on_the_left_and_the_padding_is_masked(make_rollouts):
    joined = concatenate([make_rollouts([1.0], [0], width=4), make_rollouts([2.0, 3.0], [1, 1], width=6)])
    assert joined.tokens.tolist() == [[0] * 6, [0] * 6, [1] * 6]
    assert joined.attention.tolist() == [[False] * 2 + [True] * 4, [True] * 6, [True] * 6]
    assert joined.is_completion.tolist() == joined.attention.tolist()
    assert joined.revealed_at[0].tolist() == [-1, -1, 0, 0, 0, 0]
    assert joined.reward.tolist() == [1, 2, 3]
    assert joined.group.tolist() == [0, 1, 1]
