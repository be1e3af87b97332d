"""The contract of a method, checked for every name in `dtm.config.METHODS` with its default settings.

A method is enrolled by being registered; settings of its own that deserve the battery too go into `VARIANTS`.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from batches import BLOCK, END, PHASE, VOCAB, Free, batch, build_method, moved, rollouts

from dtm.config import METHODS, DecodingConfig, configure_method
from dtm.config.registry import load_method_class
from dtm.masking import LeftToRight, SampledSteps, TraceSegments
from dtm.methods import CONTROL_VARIATES, Method
from dtm.models import Policy
from dtm.random import stream

VARIANTS = {
    "diffu-grpo": [{"beta": 0.0, "advantage": "loo"}],
    "wd1": [{"preset": "published"}, {"over": "buffer"}],
    "spg": [
        {"negative": "eubo", "draws": 3, "preset": "published"},
        {"negative": "elbo", "masks": "random"},
        {"negative": "zero", "masks": "all", "scored": "active"},
        {"self_normalise": True},
    ],
    "vrpo": [{"per_token": True, "sft": 0.0, "draws": 3}],
    "gdpo": [{"preset": "published", "beta": 0.1}, {"ratio": "sequence", "nodes": 2}],
    "trace-rl": [{"merged": 2}, {"preset": "published", "merged": 3}],
    "gdsd": [{"preset": "published", "epsilon": 0.9}, {"baseline": "loo", "draws": 3, "beta": 0.0}],
    "dmpo": [{"preset": "published"}, {"centring": "mean", "alpha": 0.5, "eta": 0.7}],
    "espo": [{"preset": "published", "draws": 1}, {"beta": 0.0, "epsilon": 0.0}],
    "just-grpo": [{"preset": "published"}, {"positions": 3, "updates": 2}],
    "agrpo": [{"preset": "published", "even": 1.0}, {"steps": 2, "temperature": 0.5, "updates": 2}],
    "d2": [{"preset": "published", "segments": 2}, {"segments": 3, "beta": 0.0}],
    "c-dtm": [
        *({"control_variate": name} for name in CONTROL_VARIATES),
        {"guard": False, "prompt_baseline": False},
        {"block": "any-order"},
        {"after_end": False},
    ],
}
SETTINGS = {
    f"{name} {fields or ''}".strip(): configure_method(name, **fields)
    for name in METHODS
    for fields in ({}, *VARIANTS.get(name, ()))
}
each = pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS.keys())


def test_every_variant_is_of_a_registered_method():
    assert VARIANTS.keys() <= METHODS.keys()


@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_found_by_its_name_and_its_settings_are_frozen_defaults(name):
    method = load_method_class(name)()
    assert isinstance(method, Method)
    assert method.config == configure_method(name)
    assert method.config.name == name
    with pytest.raises(dataclasses.FrozenInstanceError):
        method.config.name = "other"


@each
def test_the_parts_of_a_batch_add_up_to_the_whole(settings):
    method, states, weights = batch(settings)
    policy = moved(Policy(Free(1), keep_base=True))
    whole = method.loss(policy, states, weights, PHASE)
    unit, count = 2 if method.pairs else 1, states.sequences
    cuts = [slice(0, 2), slice(2, 2 + unit), slice(2 + unit, count)]
    parts = [method.loss(policy, states.select(cut), weights.select(cut), PHASE) for cut in cuts]
    torch.testing.assert_close(sum(part.value for part in parts), whole.value)
    for key, value in whole.metrics.items():
        assert not value.requires_grad
        torch.testing.assert_close(sum(part.metrics[key] for part in parts), value)
    (gradient,) = torch.autograd.grad(whole.value, policy.student.logits)
    (summed,) = torch.autograd.grad(sum(part.value for part in parts), policy.student.logits)
    assert gradient.abs().max() > 1e-3
    torch.testing.assert_close(summed, gradient)


@each
def test_no_gradient_reaches_a_position_that_is_not_scored(settings):
    method, states, weights = batch(settings)
    policy = moved(Policy(Free(len(states)), keep_base=True))
    method.loss(policy, states, weights, PHASE).value.backward()
    gradient = policy.student.logits.grad
    assert (gradient[~states.eligible] == 0).all()
    assert (gradient[states.eligible] != 0).any()
    assert (gradient[..., VOCAB] == 0).all()  # the mask token


@each
def test_only_the_student_is_trained(settings):
    method, states, weights = batch(settings)
    policy = moved(Policy(Free(len(states)), keep_base=True))
    method.loss(policy, states, weights, PHASE).value.backward()
    assert policy.teacher.logits.grad is None
    assert policy.base.logits.grad is None


@each
def test_nothing_is_learnt_from_equal_rewards(settings):
    """Where the policies agree. An annealing method needs c = 1 for it, else only the expectation is zero."""
    drawn = rollouts([0.1] * 12)
    method = build_method(settings)
    assert (method.credit(drawn.reward, drawn.group) == 0).all()
    if method.pairs or getattr(settings, "control_variate", None) == "zero":
        return
    _, states, weights = batch(settings, drawn)
    policy = Policy(Free(len(states)), keep_base=True)
    method.loss(policy, states, weights, PHASE).value.backward()
    assert policy.student.logits.grad.abs().max() < 1e-7  # weights are stored in single precision


@each
def test_credits_follow_their_rows(settings):
    """Whatever order the rollouts come in."""
    drawn, order = rollouts(), torch.randperm(12, generator=stream(0, "order"))
    method = build_method(settings)
    credit = method.credit(drawn.reward, drawn.group)
    shuffled = method.credit(drawn.reward[order], drawn.group[order])
    torch.testing.assert_close(shuffled, credit[order])


@each
def test_large_rewards_stay_finite(settings):
    spread = (1000 * torch.randn(12, generator=stream(0, "large"))).tolist()
    method, states, weights = batch(settings, rollouts(spread))
    policy = moved(Policy(Free(len(states)), keep_base=True))
    loss = method.loss(policy, states, weights, PHASE)
    loss.value.backward()
    assert torch.isfinite(loss.value)
    assert torch.isfinite(policy.student.logits.grad).all()
    assert all(torch.isfinite(value) for value in loss.metrics.values())


@each
def test_the_base_is_read_exactly_if_declared(settings, monkeypatch):
    method, states, weights = batch(settings)
    asked = []
    log_pi_0 = Policy.log_pi_0
    monkeypatch.setattr(Policy, "log_pi_0", lambda self, s: (asked.append(s), log_pi_0(self, s))[1])
    method.loss(Policy(Free(1), keep_base=method.reads_base), states, weights, PHASE)
    if method.ratio_plan is None:
        assert bool(asked) == method.reads_base
    else:  # π_0 is read once, when rollouts are drawn
        assert method.reads_base
        assert not asked


@each
def test_forecasts_know_the_rows_and_the_scored_positions(settings):
    method, states, _ = batch(settings)
    completion, plan = states.length, getattr(method.masks(BLOCK, END), "plan", None)
    if isinstance(plan, TraceSegments | LeftToRight):  # fewer rows for short completions or decodings
        assert method.rows_per_rollout >= 1
    else:
        assert method.rows_per_rollout == states.draws
    decoding = DecodingConfig(block=BLOCK)
    assert 1 <= method.scored_per_row(completion, decoding) <= completion
    if isinstance(plan, TraceSegments | SampledSteps):  # the rollouts reveal one token per step
        assert int(states.eligible.sum(1).max()) == method.scored_per_row(completion, decoding)


@each
def test_the_settings_tried_by_tuning_are_settings_of_the_method(settings):
    method = build_method(settings)
    for change in method.knobs:
        own = {name: value for name, value in change.items() if not isinstance(value, dict)}
        assert dataclasses.replace(settings, **own) != settings


@each
def test_masks_repeat_with_their_generator(settings):
    method = build_method(settings)
    one, other = (
        method.masks(BLOCK, END).states(rollouts(), VOCAB, stream(3, "masks"), update=1) for _ in range(2)
    )
    assert torch.equal(one.tokens, other.tokens)
    assert torch.equal(one.eligible, other.eligible)
