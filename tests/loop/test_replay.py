"""The buffer: what it refuses, what it replaces, and that prioritised draws are unbiased."""

from __future__ import annotations

import pytest
import torch

from dtm import tilts
from dtm.errors import MixedTiltError
from dtm.loop.replay import Replay
from dtm.methods import CDTM
from dtm.methods.c_dtm import CDTMConfig
from dtm.random import stream

REWARDS = [-0.4, 0.1, 0.3, 1.0, -0.4, -0.4, 0.8, 0.5, 0.0, 0.2, 0.9, -0.4]
GROUPS = [0] * 4 + [1] * 4 + [2] * 4


def test_a_mixture_of_tilts_is_refused_with_both_tilts(make_rollouts):
    replay = Replay(make_rollouts(REWARDS, GROUPS, tilt=2.5), h=1.0)
    with pytest.raises(MixedTiltError, match=r"tilt a = 2\.5 and cannot take rollouts of a = 5"):
        replay.refresh(make_rollouts([1.0], [3], tilt=5.0))
    assert replay.rollouts.reward.tolist() == pytest.approx(REWARDS)


def test_a_refresh_replaces_the_oldest_groups(make_rollouts):
    replay = Replay(make_rollouts(REWARDS, GROUPS), h=1.0)
    assert replay.next_group == 3
    replay.refresh(make_rollouts([0.6, 0.7], [3, 3]))
    assert replay.rollouts.group.tolist() == [1] * 4 + [2] * 4 + [3, 3]
    assert replay.rollouts.reward.tolist() == pytest.approx([*REWARDS[4:], 0.6, 0.7])
    replay.refresh(make_rollouts([0.1, 0.2], [4, 5]))
    assert replay.rollouts.group.tolist() == [3, 3, 4, 5]


@pytest.mark.parametrize("baseline", [False, True])
def test_weights_follow_a_refresh(baseline, make_rollouts):
    replay = Replay(make_rollouts(REWARDS, GROUPS), 2.0, baseline)
    replay.refresh(make_rollouts([0.6, 0.9], [3, 3]))
    reward, group = replay.rollouts.reward, replay.rollouts.group
    offset = tilts.peer_mean(reward, group) if baseline else torch.zeros_like(reward)
    assert float(replay.weights.log_weight.exp().mean()) == pytest.approx(1, rel=1e-5)
    gaps = replay.weights.log_weight - 2.0 * (reward - offset)
    torch.testing.assert_close(gaps, gaps[:1].expand_as(gaps))


@pytest.mark.parametrize("priority", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("rows", [5, 16])
def test_prioritised_draws_are_unbiased(priority, rows, make_rollouts):
    """Each row counts 1 on average, so the weighted mean of any statistic is the plain mean."""
    replay = Replay(make_rollouts(REWARDS, GROUPS), h=2.0)
    counted, draws = torch.zeros(len(replay)), 300
    for step in range(draws):
        batch, _, factor = replay.draw(rows, priority, stream(0, "draw", step))
        counted.index_add_(0, batch.tokens[:, 0], factor)
    share = counted * len(replay) / (rows * draws)
    torch.testing.assert_close(share, torch.ones(len(replay)), atol=0.2, rtol=0)
    statistic = torch.randn(len(replay), generator=stream(0, "statistic"))
    assert float((share * statistic).mean()) == pytest.approx(float(statistic.mean()), abs=0.05)


@pytest.mark.parametrize("priority", [0.0, 0.5, 0.9])
def test_no_factor_exceeds_one_over_the_even_share(priority, make_rollouts):
    replay = Replay(make_rollouts([0.0] * 11 + [3.0], GROUPS), h=5.0)
    factors = torch.cat([replay.draw(64, priority, stream(0, "draw", step))[2] for step in range(20)])
    assert float(factors.max()) <= 1 / (1 - priority) + 1e-6
    if priority == 0:
        assert (factors == 1).all()


def test_surprising_rows_come_more_often(make_rollouts):
    replay = Replay(make_rollouts([0.0] * 11 + [3.0], GROUPS), h=5.0)
    batch, _, factor = replay.draw(100, 0.8, stream(0, "draw"))
    assert (batch.tokens[:, 0] == 11).sum() > 30
    assert (factor[batch.tokens[:, 0] == 11] < 0.5).all()


def test_rows_of_a_neutral_weight_come_by_the_even_share_alone(make_rollouts):
    replay = Replay(make_rollouts([0.0] * 8 + [1.0] * 4, GROUPS), h=3.0)
    neutral = CDTM(CDTMConfig(control_variate="one")).neutral_weight(replay.weights.log_z)
    batch, weights, factor = replay.draw(120, 0.9, stream(0, "draw"), neutral)
    wrong = batch.reward == 0
    torch.testing.assert_close(weights.log_weight[wrong].exp(), torch.full((int(wrong.sum()),), neutral))
    assert int(wrong.sum()) == 8  # a tenth of the draws, two thirds of the rows
    assert (factor[wrong] > 9.9).all()


def test_a_batch_carries_the_weights_of_its_rows(make_rollouts):
    replay = Replay(make_rollouts(REWARDS, GROUPS), h=2.0)
    batch, weights, _ = replay.draw(32, 0.5, stream(0, "draw"))
    chosen = batch.tokens[:, 0]
    assert torch.equal(batch.reward, replay.rollouts.reward[chosen])
    assert torch.equal(weights.log_weight, replay.weights.log_weight[chosen])
    assert torch.equal(weights.peers, replay.weights.peers[chosen])


def test_equal_rewards_are_drawn_evenly(make_rollouts):
    replay = Replay(make_rollouts([0.5] * 12, GROUPS), h=2.0)
    batch, _, factor = replay.draw(24, 0.8, stream(0, "draw"))
    assert torch.bincount(batch.tokens[:, 0]).tolist() == [2] * 12
    torch.testing.assert_close(factor, torch.ones(24))
