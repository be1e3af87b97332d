"""What a group's rewards become, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from dtm.methods.advantages import (
    ADVANTAGES,
    best_and_worst,
    centred,
    leave_one_out,
    softmax_credit,
    z_score,
)

GROUP = torch.tensor([5, 2, 5, 2, 5, 7])
REWARD = torch.tensor([1.0, 0.1, 0.0, 0.1, 0.5, 3.0])


def test_advantages_by_hand():
    assert centred(REWARD, GROUP).tolist() == [0.5, 0, -0.5, 0, 0, 0]
    assert leave_one_out(REWARD, GROUP).tolist() == [0.75, 0, -0.75, 0, 0, 0]
    deviation = math.sqrt(0.5 / 3)
    assert z_score(REWARD, GROUP).tolist() == pytest.approx([0.5 / deviation, 0, -0.5 / deviation, 0, 0, 0])


@pytest.mark.parametrize("name", ADVANTAGES)
def test_equal_rewards_are_worth_exactly_nothing(name):
    reward = torch.tensor([0.1, 0.1, 0.1, 1e-8, 1e-8, 1e-8, 7.7])
    assert ADVANTAGES[name](reward, torch.tensor([0, 0, 0, 1, 1, 1, 2])).tolist() == [0] * 7


def test_the_softmax_weights_of_wd1_by_hand():
    advantage = centred(REWARD, GROUP)
    up = torch.tensor([0.5, -0.5, 0.0]).softmax(0)
    down = torch.tensor([-0.5, 0.5, 0.0]).softmax(0)
    credit = softmax_credit(advantage, GROUP, 1.0)
    assert credit[[0, 2, 4]].tolist() == pytest.approx((3 * (up - down)).tolist())
    assert credit[[1, 3, 5]].tolist() == [0, 0, 0]
    alone = softmax_credit(advantage, GROUP, 1.0, negatives=False)
    assert alone[[0, 2, 4]].tolist() == pytest.approx((3 * up).tolist())
    assert alone[[1, 3, 5]].tolist() == pytest.approx([1, 1, 1])


def test_softmax_weights_of_any_reward_are_finite():
    credit = softmax_credit(torch.tensor([1e4, -1e4, 0.0]), torch.zeros(3).long(), 5.0)
    assert credit.tolist() == pytest.approx([3, -3, 0])


def test_a_pair_is_the_best_and_the_worst_and_ties_have_none():
    assert best_and_worst(REWARD, GROUP).tolist() == [1, 0, -1, 0, 0, 0]
    reward, group = torch.tensor([1.0, 2.0, 2.0, 1.0, 1.5]), torch.zeros(5).long()
    assert best_and_worst(reward, group).tolist() == [-1, 1, 0, 0, 0]
