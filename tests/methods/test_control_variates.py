"""Every control variate in the list, and the weights that c-DTM reads; a new one is tested by being there."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

from dtm.errors import ConfigError
from dtm.loop.replay import Replay
from dtm.losses import AdaptiveControl
from dtm.masking import MaskCount
from dtm.methods import CDTM, CONTROL_VARIATES, mdm_loss
from dtm.methods.c_dtm import CDTMConfig
from dtm.models import Denoiser, Policy
from dtm.random import stream
from dtm.records import Phase
from dtm.tilts import weigh

ROWS, WIDTH, VOCAB = 12, 6, 5
each = pytest.mark.parametrize("name", CONTROL_VARIATES)


class Free(Denoiser):
    """A logit of its own for every row, position and token."""

    def __init__(self, rows: int, generator: torch.Generator) -> None:
        super().__init__()
        self.vocab_size, self.mask_id, self.eos_id = VOCAB + 1, VOCAB, 0
        self.logits = nn.Parameter(torch.randn(rows, WIDTH, VOCAB + 1, generator=generator))

    def hidden(self, tokens, attention=None):
        return self.logits

    def head(self, rows):
        return rows


def batch(make_rollouts, scale: float = 1.0, baseline: bool = False, h: float = 0.5):
    """Masked states of twelve rollouts of four prompts, their weights, and the phase."""
    reward = scale * torch.randn(ROWS, generator=stream(0, "reward")).clamp(-1, 1)
    rollouts = make_rollouts(reward.tolist(), [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3, width=WIDTH)
    rollouts = replace(rollouts, tokens=rollouts.tokens % VOCAB)
    replay = Replay(rollouts, h, baseline)
    states = MaskCount(2).states(rollouts, VOCAB, stream(0, "masks"))
    return states, replay.weights, Phase(0, 0.0, h, 2 * scale, control=0.8)


def moved_policy(model: Denoiser) -> Policy:
    """A student away from its teacher."""
    policy = Policy(model)
    with torch.no_grad():
        noise = torch.randn(policy.student.logits.shape, generator=stream(1, "student"))
        policy.student.logits.add_(0.3 * noise)
    return policy


@each
@pytest.mark.parametrize("baseline", [False, True])
def test_rewards_of_500_over_h_stay_finite(name, baseline, make_rollouts):
    states, weights, phase = batch(make_rollouts, scale=1000.0, baseline=baseline)
    policy = moved_policy(Free(ROWS, stream(0, "logits")))
    loss = CDTM(CDTMConfig(control_variate=name)).loss(policy, states, weights, phase)
    loss.value.backward()
    assert torch.isfinite(loss.value)
    assert torch.isfinite(policy.student.logits.grad).all()
    assert all(torch.isfinite(value) for value in loss.metrics.values())


@pytest.mark.parametrize("baseline", [False, True])
@pytest.mark.parametrize("h", [1.0, 400.0])
def test_prompts_of_very_different_rewards_have_finite_peers(baseline, h, make_rollouts):
    """Rewards of 2 and 0 that do not vary within a prompt: with the baseline every w̄ is 1."""
    replay = Replay(make_rollouts([2.0, 2.0, 0.0, 0.0], [0, 0, 1, 1]), h, baseline)
    assert torch.isfinite(replay.weights.peers).all()
    if baseline:
        assert replay.weights.peers.tolist() == pytest.approx([1, 1, 1, 1])


@each
def test_at_the_teacher_the_gradient_is_the_advantage_times_the_residual(name, make_rollouts):
    """(w̄ − c̄)(π_a − e) at each scored position, times its weight in the batch (docs/method.md)."""
    states, weights, phase = batch(make_rollouts)
    policy = Policy(Free(ROWS, stream(0, "logits")))
    control = CONTROL_VARIATES[name](states, weights, phase)
    CDTM(CDTMConfig(control_variate=name)).loss(policy, states, weights, phase).value.backward()
    pi = policy.student.logits.detach()[..., :VOCAB].softmax(-1)
    residual = pi - nn.functional.one_hot(states.clean, VOCAB)
    scale = states.row_weight * (weights.log_weight.exp() - control) / (ROWS * WIDTH)
    expected = (scale[:, None, None] * residual * states.eligible[..., None]).float()
    torch.testing.assert_close(policy.student.logits.grad[..., :VOCAB], expected, atol=1e-6, rtol=1e-4)


@each
def test_no_control_looks_at_its_own_row(name, make_rollouts):
    """Raising one reward, on the same normalisation, changes the c̄ of its peers (rows 3 and 5) at most."""
    states, weights, phase = batch(make_rollouts)
    rewards = (weights.reward, weights.reward + torch.eye(ROWS)[4])
    weighed = [weigh(reward, weights.group, phase.step, log_z=weights.log_z) for reward in rewards]
    assert weighed[0].log_weight[4] != weighed[1].log_weight[4]
    control, again = (CONTROL_VARIATES[name](states, each, phase) for each in weighed)
    changed = (control != again).nonzero().flatten().tolist()
    assert changed == ([3, 5] if name == "loo" else [])


def test_control_variates_by_hand(make_rollouts):
    """c̄ = 0, 1/Z, 1, the mean w̄ of the other two, and what the phase says."""
    states, weights, phase = batch(make_rollouts)
    found = {name: control(states, weights, phase) for name, control in CONTROL_VARIATES.items()}
    weight = weights.log_weight.exp()
    assert (found["zero"] == 0).all()
    assert found["one"].tolist() == pytest.approx([math.exp(-weights.log_z)] * ROWS)
    assert (found["mean"] == 1).all()
    assert found["loo"][4].item() == pytest.approx(float(weight[3] + weight[5]) / 2, rel=1e-5)
    assert found["adaptive"].tolist() == pytest.approx([0.8] * ROWS)


def test_the_memory_of_the_adaptive_control_is_a_setting():
    control = CDTM(CDTMConfig(control_memory=0.5)).new_control()
    control.update(1.0, 1.0)
    control.update(0.0, 1.0)
    assert control.value == pytest.approx(0.25 / 0.75)


def test_moments_of_the_adaptive_control_weigh_a_row_by_the_square_of_its_weight(make_rollouts):
    """As `AdaptiveControl.observe` takes them from tensors, up to the number of rows."""
    states, weights, phase = batch(make_rollouts)
    policy = moved_policy(Free(ROWS, stream(0, "logits")))
    metrics = CDTM().loss(policy, states, weights, phase).metrics
    control = AdaptiveControl(memory=0.0)
    log_weight = weights.log_weight[states.row]
    control.observe(policy.log_pi(states), policy.log_pi_a(states), states.x1, log_weight, states.weight)
    assert float(metrics["control_numerator"]) == pytest.approx(control.numerator / ROWS, rel=1e-5)
    assert float(metrics["control_denominator"]) == pytest.approx(control.denominator / ROWS, rel=1e-5)


@pytest.mark.parametrize(("block", "expected"), [("decoding", 4), ("any-order", None), (3, 3)])
@pytest.mark.parametrize("after_end", [True, False])
def test_masks_have_the_blocks_and_the_end_of_the_settings(block, expected, after_end):
    method = CDTM(CDTMConfig(block=block, after_end=after_end))
    if expected is None and not after_end:
        with pytest.raises(ConfigError, match="needs blocks"):
            method.masks(4, 7)
    else:
        assert method.masks(4, 7) == MaskCount(expected, None if after_end else 7)


def test_the_guard_allows_what_the_tilt_of_the_phase_allows(make_rollouts):
    """The bound is h times the range of the reward: at h = 0.5 and a range of 2, a ratio up to e."""
    states, weights, phase = batch(make_rollouts)
    policy = Policy(Free(ROWS, stream(0, "logits")))
    log_pi = policy.student.logits.detach()[..., :VOCAB].log_softmax(-1)
    raised = log_pi.clone()
    raised.scatter_add_(-1, states.clean[..., None], torch.full((ROWS, WIDTH, 1), 40.0))
    policy.student.logits.data[..., :VOCAB] = raised  # π_θ(x_1) = 1, so the ratio is 1 / π_a(x_1)
    found = CDTM(CDTMConfig(control_variate="mean")).loss(policy, states, weights, phase).metrics["guarded"]
    ratio = -log_pi.gather(-1, states.clean[..., None]).squeeze(-1)
    beyond = states.eligible & (weights.log_weight > 0)[:, None] & (ratio > 0.5 * 2)
    share = (states.row_weight[:, None] * beyond).sum() / (ROWS * WIDTH)
    assert 0 < float(share) < 0.9
    assert float(found) == pytest.approx(float(share), rel=1e-4)


def test_the_guard_drops_only_the_advantage(make_rollouts):
    states, weights, phase = batch(make_rollouts)
    tight = replace(phase, reward_range=0.0)
    policy = moved_policy(Free(ROWS, stream(0, "logits")))
    free = CDTM(CDTMConfig(control_variate="mean", guard=False)).loss(policy, states, weights, tight)
    guarded = CDTM(CDTMConfig(control_variate="mean")).loss(policy, states, weights, tight)
    assert float(free.metrics["guarded"]) == 0
    assert 0 < float(guarded.metrics["guarded"]) < 1
    assert torch.equal(free.metrics["gained"], guarded.metrics["gained"])
    assert free.value != guarded.value


def test_the_evidence_bound_by_hand(make_rollouts):
    states, _, _ = batch(make_rollouts)
    model = Free(ROWS, stream(0, "logits"))
    log_pi = model.logits.detach()[..., :VOCAB].log_softmax(-1)
    by_hand = 0.0
    for row, position in states.eligible.nonzero().tolist():
        by_hand -= float(states.row_weight[row] * log_pi[row, position, states.clean[row, position]])
    assert mdm_loss(model, states).item() == pytest.approx(by_hand / ROWS, rel=1e-5)
