"""Credits of the newer methods: baselines, importance weights, and weights that read the student."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from batches import END, PROMPT, VOCAB, WIDTH, Free, batch, build_method, moved, pairs_of, rollouts

from dtm.methods.advantages import group_weights, leave_one_out, log_partition
from dtm.methods.d2 import D2Config
from dtm.methods.dmpo import DMPOConfig
from dtm.methods.espo import ESPOConfig
from dtm.methods.gdsd import GDSDConfig
from dtm.methods.just_grpo import JustGRPOConfig
from dtm.methods.spg import SPGConfig
from dtm.models import Policy


def test_group_weights_are_a_softmax_times_the_size_of_the_group():
    exponent, group = torch.tensor([1.0, 900.0, 2.0, 901.0]), torch.tensor([0, 1, 0, 1])
    expected = [2 / (1 + math.e), 2 / (1 + math.e), 2 * math.e / (1 + math.e), 2 * math.e / (1 + math.e)]
    assert group_weights(exponent, group).tolist() == pytest.approx(expected)


def test_the_log_partition_baseline_leaves_the_row_out():
    reward, group = torch.tensor([1.0, 0.0, 0.5, 7.0, 2.0]), torch.tensor([3, 3, 3, 1, 1])
    found = log_partition(reward, group, 2.0)
    others = [(0.0, 0.5), (1.0, 0.5), (1.0, 0.0), (2.0,), (7.0,)]
    for own, rest, value in zip(reward.tolist(), others, found.tolist(), strict=True):
        mean = sum(math.exp(2 * r) for r in rest) / len(rest)
        assert value == pytest.approx(own - math.log(mean) / 2, rel=1e-5)
    assert log_partition(torch.tensor([3.0]), torch.tensor([0]), 1.0).tolist() == [0]
    tiny = log_partition(reward, group, 1e-4)
    torch.testing.assert_close(tiny, leave_one_out(reward, group), atol=1e-3, rtol=0)


def test_gdsd_subtracts_the_baseline_of_its_preset_or_the_given_one():
    reward, group = torch.tensor([1.0, 0.0, 0.5]), torch.zeros(3).long()
    loo, partition = leave_one_out(reward, group), log_partition(reward, group, 3.0)
    for settings, expected in (
        (GDSDConfig(psi=3.0), partition),
        (GDSDConfig(psi=3.0, preset="published"), loo),
        (GDSDConfig(psi=3.0, baseline="loo"), loo),
    ):
        assert torch.equal(build_method(settings).credit(reward, group), expected)


def test_the_credit_of_dmpo_weighs_by_the_stored_ratio_and_the_reward():
    reward, group = torch.tensor([1.0, 0.0, 0.5]), torch.zeros(3).long()
    log_ratio = torch.tensor([-2.0, 0.3, 0.1])
    up = 3 * (0.5 * (log_ratio + reward / 0.4)).softmax(0)
    down = 3 * (0.5 * (log_ratio - reward / 0.4)).softmax(0)
    for centring, expected in (("none", up), ("mean", up - 1), ("unbiased", up - 1), ("negative", up - down)):
        method = build_method(DMPOConfig(alpha=0.4, eta=0.5, centring=centring))
        torch.testing.assert_close(method.credit(reward, group, log_ratio), expected)
    assert build_method(DMPOConfig(preset="published")).centring == "negative"
    assert not build_method(DMPOConfig(preset="published")).scores_first


def test_unbiased_centring_subtracts_the_weights_of_the_student():
    """log π_θ/π_a by the masks of the batch, over each group; nothing changes where the policies agree."""
    method, states, weights = batch(DMPOConfig(alpha=0.5))
    same = method.score(Policy(Free(len(states))), states)
    assert (method.reweigh(weights, same).credit - weights.credit).abs().max() == 0
    policy = moved(Policy(Free(len(states)), keep_base=True))
    score = method.score(policy, states)
    expected = [sum(new) / len(new) - sum(old) / len(old) for new, old, _, _ in pairs_of(policy, states)]
    assert score.tolist() == pytest.approx(expected, rel=1e-4)
    found = method.reweigh(weights, score).credit
    for number in range(4):
        rows = weights.group == number
        centre = 3 * score[rows].softmax(0)
        torch.testing.assert_close(found[rows].double(), weights.credit[rows] - (centre - 1))


def test_published_just_grpo_averages_over_the_completions_that_have_an_advantage():
    drawn = rollouts()  # three of twelve have equal rewards
    fixed, published = (
        build_method(JustGRPOConfig(preset=preset)).credit(drawn.reward, drawn.group)
        for preset in ("fixed", "published")
    )
    torch.testing.assert_close(published, fixed * 12 / 9)


def test_published_presets_score_what_follows_the_end():
    for settings in (GDSDConfig, DMPOConfig, ESPOConfig, JustGRPOConfig):
        _, fixed, _ = batch(settings())
        _, published, _ = batch(settings(preset="published"))
        assert (published.row_length == WIDTH - PROMPT).all()
        assert fixed.row_length[:: 3 * fixed.draws].tolist() == [4] * 4  # every third ends after four tokens
        assert not fixed.eligible[fixed.clean == END].all()


def test_only_published_d2_hides_parts_of_the_prompt():
    hidden = []
    for preset in ("fixed", "published"):
        _, states, _ = batch(D2Config(preset=preset))
        hidden.append(float((states.tokens[:, :PROMPT] == VOCAB).float().mean()))
    assert hidden[0] == 0
    assert 0.02 < hidden[1] < 0.4


# ── StableDRL's weights ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("ratio", ["per-token", "sequence"])
def test_self_normalised_weights_are_one_where_the_policies_agree_and_average_to_one(ratio):
    method, states, weights = batch(SPGConfig(self_normalise=True, ratio=ratio))
    assert method.scores_first
    same = method.score(Policy(Free(len(states))), states)
    assert torch.equal(method.reweigh(weights, same).credit, weights.credit)
    score = method.score(moved(Policy(Free(len(states)), keep_base=True)), states)
    assert score.abs().max() > 0.01
    factor = method.reweigh(replace(weights, credit=torch.ones(12)), score).credit
    torch.testing.assert_close(factor.view(4, 3).mean(1), torch.ones(4))  # Σ w = 1 in each group
    expected = 3 * score.view(4, 3).clamp(max=math.log(5)).softmax(1).flatten()
    torch.testing.assert_close(factor.double(), expected)


def test_ratios_above_the_cap_count_as_the_cap():
    method, _, weights = batch(SPGConfig(self_normalise=True, cap=2.0))
    one = replace(weights, credit=torch.ones(12))
    score = torch.zeros(12, dtype=torch.float64)
    score[0] = 50.0
    factor = method.reweigh(one, score).credit
    assert factor[:3].tolist() == pytest.approx([3 * 2 / 4, 3 / 4, 3 / 4])
    score[0] = -50.0  # no cap below
    assert float(method.reweigh(one, score).credit[0]) < 1e-9


def test_the_ratio_per_token_is_the_mean_over_scored_tokens():
    method, states, _ = batch(SPGConfig(self_normalise=True))
    policy = moved(Policy(Free(len(states)), keep_base=True))
    logs = [model.logits.detach()[..., :VOCAB].log_softmax(-1) for model in (policy.student, policy.teacher)]
    for sequence, value in enumerate(method.score(policy, states).tolist()):
        rows = range(sequence * states.draws, (sequence + 1) * states.draws)
        changes = [
            float(logs[0][row, k, states.clean[row, k]] - logs[1][row, k, states.clean[row, k]])
            for row in rows
            for k in states.eligible[row].nonzero().flatten()
        ]
        assert value == pytest.approx(sum(changes) / len(changes), rel=1e-5)
