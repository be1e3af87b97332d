"""GDSD, DMPO, ESPO, JustGRPO, AGRPO and d2: losses and gradients against formulas by hand."""

from __future__ import annotations

import math

import pytest
import torch
from batches import PHASE, VOCAB, WIDTH, Free, batch, moved, pairs_of
from torch import nn

from dtm.errors import ConfigError
from dtm.methods.agrpo import AGRPOConfig
from dtm.methods.d2 import D2Config
from dtm.methods.dmpo import DMPOConfig
from dtm.methods.espo import ESPOConfig
from dtm.methods.gdsd import GDSDConfig, clamped, cross_square
from dtm.methods.just_grpo import JustGRPOConfig
from dtm.methods.ratios import k2
from dtm.methods.spg import SPGConfig
from dtm.models import Policy
from dtm.random import stream

# ── gradients where the policies agree ────────────────────────────────────────────────────────────


def bound_share(states):
    """∂ ELBO / ∂ log π: the row's weight over the number of masks."""
    return states.row_weight.view(states.sequences, states.draws, 1) / states.draws


def lengths(states):
    return states.row_length.view(states.sequences, states.draws, 1)


def gdsd_share(settings, states, credit):
    """The residual is −ψA: 2ψA/n of the bound; published, once for each of n_mc pairs."""
    pairs = settings.draws if settings.preset == "published" else 1
    return 2 * pairs * settings.psi * credit / lengths(states) / states.sequences * bound_share(states)


def dmpo_share(settings, states, credit):
    return credit / (states.sequences * states.length) * bound_share(states)


def espo_share(settings, states, credit):
    return credit / lengths(states) / states.sequences * bound_share(states)


def trajectory_share(settings, states, credit):
    """Each token of the sum over steps, over rows and the common length; published AGRPO has no length."""
    mean = isinstance(settings, AGRPOConfig) and settings.preset == "published"
    return credit / states.sequences / (1 if mean else states.length) * bound_share(states)


def d2_share(settings, states, credit):
    """Every token of the batch alike."""
    return credit / (states.batch_length / states.draws)


CASES = {
    "gdsd": (GDSDConfig(psi=0.7), gdsd_share),
    "gdsd, published": (GDSDConfig(preset="published", draws=3), gdsd_share),
    "dmpo": (DMPOConfig(alpha=0.3), dmpo_share),
    "dmpo, published": (DMPOConfig(preset="published"), dmpo_share),
    "espo": (ESPOConfig(), espo_share),
    "espo, published": (ESPOConfig(preset="published", draws=1), espo_share),
    "just-grpo": (JustGRPOConfig(), trajectory_share),
    "just-grpo, some": (JustGRPOConfig(positions=3, updates=2), trajectory_share),
    "just-grpo, published": (JustGRPOConfig(preset="published"), trajectory_share),
    "agrpo": (AGRPOConfig(steps=4), trajectory_share),
    "agrpo, published": (AGRPOConfig(steps=4, preset="published", updates=3), trajectory_share),
    "d2": (D2Config(segments=3), d2_share),
    "d2, published": (D2Config(segments=2, preset="published", beta=0.3), d2_share),
}


@pytest.mark.parametrize(("settings", "share"), CASES.values(), ids=CASES.keys())
def test_where_the_policies_agree_the_gradient_is_the_share_times_the_residual(settings, share):
    """share · (π − e) at each scored position, whatever is clipped or penalised."""
    method, states, weights = batch(settings)
    policy = Policy(Free(len(states)), keep_base=True)
    method.loss(policy, states, weights, PHASE).value.backward()
    logits = policy.student.logits.detach()[..., :VOCAB]
    scale = share(settings, states, weights.credit[:, None, None])
    scale = (scale * torch.ones(states.sequences, states.draws, WIDTH)).view(-1, WIDTH, 1)
    residual = logits.softmax(-1) - nn.functional.one_hot(states.clean, VOCAB)
    expected = scale * residual * states.eligible[..., None]
    torch.testing.assert_close(policy.student.logits.grad[..., :VOCAB], expected, atol=1e-7, rtol=1e-4)


def test_agrpo_scores_at_the_temperature_of_the_decoder():
    """The gradient of log softmax(z/τ) is (π_τ − e)/τ."""
    settings = AGRPOConfig(steps=4, temperature=0.5)
    method, states, weights = batch(settings)
    policy = Policy(Free(len(states)))
    method.loss(policy, states, weights, PHASE).value.backward()
    tempered = (policy.student.logits.detach()[..., :VOCAB] / 0.5).softmax(-1)
    scale = trajectory_share(settings, states, weights.credit[:, None, None])
    scale = (scale * torch.ones(states.sequences, states.draws, WIDTH)).view(-1, WIDTH, 1)
    expected = scale * (tempered - nn.functional.one_hot(states.clean, VOCAB)) / 0.5
    expected = expected * states.eligible[..., None]
    torch.testing.assert_close(policy.student.logits.grad[..., :VOCAB], expected, atol=1e-7, rtol=1e-4)


# ── values away from there ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("epsilon", [0.05, 0.2])
def test_espo_by_hand(epsilon):
    method, states, weights = batch(ESPOConfig(beta=0.3, epsilon=epsilon))
    policy = moved(Policy(Free(len(states)), keep_base=True))
    total = 0.0
    for (new, old, base, n), advantage in zip(pairs_of(policy, states), weights.credit.tolist(), strict=True):
        mean = [sum(values) / len(values) for values in (new, old, base)]
        rho = math.exp((mean[0] - mean[1]) / n)
        total -= min(rho * advantage, min(max(rho, 1 - epsilon), 1 + epsilon) * advantage)
        total += 0.3 * 0.5 * (mean[0] - mean[2]) ** 2 / n
    found = method.loss(policy, states, weights, PHASE).value.item()
    assert found == pytest.approx(total / states.sequences, rel=1e-5)


@pytest.mark.parametrize("preset", ["fixed", "published"])
def test_gdsd_by_hand(preset):
    """Published: the clamp on the sum, the target per token, squares summed over masks."""
    settings = GDSDConfig(preset=preset, psi=0.8, epsilon=0.1, beta=0.3, draws=2)
    method, states, weights = batch(settings)
    policy = moved(Policy(Free(len(states)), keep_base=True))
    low, high, total, clipped = math.log(0.9), math.log(1.1), 0.0, 0
    for (new, old, base, n), advantage in zip(pairs_of(policy, states), weights.credit.tolist(), strict=True):
        change = [one - other for one, other in zip(new, old, strict=True)]
        gap = [one - other for one, other in zip(new, base, strict=True)]
        if preset == "published":
            total += sum((min(max(d, low), high) / n - 0.8 * advantage) ** 2 for d in change)
            total += 0.3 * sum(0.5 * d**2 for d in gap) / 2 / n
            clipped += sum(not low <= d <= high for d in change)
        else:
            first, second = (min(max(d / n, low), high) * n - 0.8 * advantage for d in change)
            total += first * second / n + 0.3 * 0.5 * gap[0] * gap[1] / n
            clipped += sum(not low <= d / n <= high for d in change)
    loss = method.loss(policy, states, weights, PHASE)
    assert loss.value.item() == pytest.approx(total / states.sequences, rel=1e-4)
    assert float(loss.metrics["clipped"]) == pytest.approx(clipped / 2 / states.sequences)
    assert 0 < clipped < 2 * states.sequences or preset == "published"


def test_the_clamp_of_gdsd_stops_the_gradient_outside():
    value = torch.tensor([-0.5, 0.0, 0.5], requires_grad=True)
    clamped(value, 0.2).sum().backward()
    assert value.grad.tolist() == [0, 1, 0]
    assert clamped(value, 0.2).tolist() == pytest.approx([math.log(0.8), 0, math.log(1.2)])


def test_products_of_different_masks_estimate_the_square_of_the_mean():
    """The mean of squares is too large by the variance."""
    noise = torch.randn(40_000, 3, generator=stream(0, "noise"), dtype=torch.float64)
    value = 1.5 + noise
    assert float(cross_square(value).mean()) == pytest.approx(2.25, abs=0.03)
    assert float(value.square().mean()) == pytest.approx(3.25, abs=0.05)


def test_published_gdsd_is_held_back_by_its_clamp_and_the_fixed_one_is_not():
    """A change of 0.01 nats per token is outside of 4e-4 on the sum."""
    shares = {}
    for preset in ("fixed", "published"):
        method, states, weights = batch(GDSDConfig(preset=preset))
        policy = Policy(Free(len(states)), keep_base=True)
        with torch.no_grad():
            policy.student.logits.add_(0.05 * policy.student.logits)
        shares[preset] = float(method.loss(policy, states, weights, PHASE).metrics["clipped"])
    assert shares["fixed"] == 0
    assert shares["published"] > 0.8


# ── pieces ────────────────────────────────────────────────────────────────────────────────────────


def test_k2_has_the_gradient_of_kl_on_policy():
    logits = torch.tensor([0.3, -0.2, 1.0], dtype=torch.float64, requires_grad=True)
    reference = torch.tensor([0.6, 0.1, 0.3], dtype=torch.float64).log()
    law = logits.log_softmax(0)
    (estimate,) = torch.autograd.grad(
        (law.exp().detach() * k2(law - reference)).sum(), logits, retain_graph=True
    )
    (exact,) = torch.autograd.grad((law.exp() * (law - reference)).sum(), logits)
    torch.testing.assert_close(estimate, exact)


@pytest.mark.parametrize(
    ("settings", "fields", "message"),
    [
        (GDSDConfig, {"draws": 1}, r"method\.draws must be at least 2.*--method\.preset published"),
        (GDSDConfig, {"epsilon": 0.0}, r"method\.epsilon must lie in \(0, 1\)"),
        (GDSDConfig, {"psi": 0.0}, r"method\.psi must be positive"),
        (DMPOConfig, {"alpha": 0.0}, r"method\.alpha must be positive"),
        (ESPOConfig, {"epsilon": 1.0}, r"method\.epsilon must lie in \[0, 1\)"),
        (JustGRPOConfig, {"positions": 0}, r"method\.positions must be at least 1"),
        (AGRPOConfig, {"even": 0.0}, r"method\.even must lie in \(0, 1\]"),
        (D2Config, {"segments": 0}, r"method\.segments must be at least 1"),
        (SPGConfig, {"cap": 0.0}, r"method\.cap must be positive"),
    ],
)
def test_a_value_that_cannot_run_is_refused(settings, fields, message):
    with pytest.raises(ConfigError, match=message):
        settings(**fields)
