"""The records between the stages, and the random streams behind them."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from dtm.errors import DtmError, nearest
from dtm.random import stream
from dtm.records import Prompts, Rollouts


def test_a_stream_is_decided_by_seed_purpose_and_step():
    keys = list(itertools.product((0, 1), ("masks", "rollouts"), (0, 1)))
    draws = {key: torch.rand(4, generator=stream(*key)).tolist() for key in keys}
    assert len({tuple(draw) for draw in draws.values()}) == len(keys)
    assert torch.rand(4, generator=stream(*keys[3])).tolist() == draws[keys[3]]


def test_numbers_that_read_alike_give_different_streams():
    assert stream(1, "a", 11).initial_seed() != stream(11, "a", 1).initial_seed()
    assert stream(0, "a1", 2).initial_seed() != stream(0, "a", 12).initial_seed()


def test_repeated_prompts_keep_their_columns_together():
    tokens = torch.tensor([[1, 2], [3, 4]])
    prompts = Prompts(tokens, torch.ones_like(tokens).bool(), ["one", "two"], {"answer": [10, 20]})
    repeated = prompts.repeat(2)
    assert repeated.tokens.tolist() == [[1, 2], [1, 2], [3, 4], [3, 4]]
    assert repeated.views == ["one", "one", "two", "two"]
    assert repeated.columns == {"answer": [10, 10, 20, 20]}


@pytest.mark.parametrize("error", DtmError.__subclasses__())
def test_every_error_is_also_a_builtin_one(error):
    builtin = {ValueError, RuntimeError, ArithmeticError, OSError}
    assert builtin & set(error.__mro__)


def test_a_name_far_from_all_others_is_not_guessed():
    assert nearest("zzz", ["one", "two"]) == "Valid: one, two."
    assert nearest("tow", ["one", "two"]).startswith("Did you mean 'two'?")
    assert nearest("TWO", ["one", "two"]).startswith("Did you mean 'two'?")
    assert nearest("rating", ["Rating", "other"]).startswith("Did you mean 'Rating'?")


def test_rows_of_rollouts_keep_all_that_was_measured(make_rollouts):
    drawn = make_rollouts([0.0, 1.0, 2.0], [0, 0, 1])
    drawn = replace(drawn, log_ratio=torch.tensor([0.1, 0.2, 0.3]), tilt=2.0)
    wanted = torch.tensor([2, 0])
    for rows in ([2, 0], wanted, range(2, -1, -2)):
        part = drawn.select(rows)
        assert isinstance(part, Rollouts)
        assert part.tilt == 2.0
        for name, tensor in drawn.tensors().items():
            assert torch.equal(getattr(part, name), tensor[wanted])
    assert drawn.select(drawn.reward > 0.5).reward.tolist() == [1.0, 2.0]
    assert drawn.select(slice(1)).group.tolist() == [0]
    assert len(drawn.select([])) == 0
    moved = drawn.to(torch.device("cpu"))
    assert moved.tensors().keys() == drawn.tensors().keys() >= {"revealed_at", "log_prob", "log_ratio"}
    assert "log_ratio" not in replace(drawn, log_ratio=None).tensors()
