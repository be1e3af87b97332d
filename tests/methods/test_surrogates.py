"""Likelihood estimates and the pieces of a policy gradient, against what they should be."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from dtm.masking import FullMask, Planned, Quadrature, UniformCount
from dtm.methods import surrogates
from dtm.methods.ratios import clipped, is_clipped, k3
from dtm.methods.surrogates import by_sequence, elbo, eubo, mixture, token_scores
from dtm.random import stream
from dtm.verify import claims
from dtm.verify.claims.likelihoods import every_count, log_likelihood, lower, one_order, upper
from dtm.verify.claims.population import clean_rows, perturbed
from dtm.verify.exact import denoiser, ordered_log_laws, random_world

WORLD = random_world(3, 4, seed=0)
TABLE = perturbed(WORLD.posterior(), 0, scale=1.0)


def estimated(states):
    with torch.no_grad():
        score = token_scores(denoiser(TABLE)(states.tokens, None, states.scored), states)
    return elbo(score, by_sequence(states.row_weight, states))


def bound_by_count() -> torch.Tensor:
    """g(k) = E_{|S|=k} (n/k) Σ_S log π for k = 1..4 and every sequence."""
    states = every_count(clean_rows(WORLD), WORLD.vocab)
    with torch.no_grad():
        score = token_scores(denoiser(TABLE)(states.tokens, None, states.scored), states)
    rows = by_sequence(states.row_weight, states) * score.sum(-1)
    return rows.view(len(rows), 4, -1).mean(-1)


# ── estimates against enumeration ─────────────────────────────────────────────────────────────────


def test_random_masks_estimate_the_evidence_bound():
    states = Planned(UniformCount(4000)).states(clean_rows(WORLD), WORLD.vocab, stream(0, "masks"))
    exact = ordered_log_laws(WORLD, TABLE, None).mean(0)
    assert float((estimated(states) - exact).abs().max()) < 0.5
    assert float((estimated(states) - exact).mean()) == pytest.approx(0, abs=0.02)


def test_quadrature_estimates_the_bound_at_its_nodes():
    """Two nodes of four tokens: k = 1 and 3, half of each."""
    clean = clean_rows(WORLD)
    means = torch.stack(
        [estimated(Planned(Quadrature(2)).states(clean, 3, stream(seed, "masks"))) for seed in range(600)]
    ).mean(0)
    expected = (bound_by_count()[:, 0] + bound_by_count()[:, 2]) / 2
    assert float((means - expected).mean()) == pytest.approx(0, abs=0.03)


def test_the_bound_is_the_mean_over_counts():
    torch.testing.assert_close(bound_by_count().mean(1), lower(WORLD, TABLE), atol=1e-10, rtol=0)


def test_one_step_is_the_sum_of_independent_predictions():
    states = Planned(FullMask()).states(clean_rows(WORLD), WORLD.vocab, stream(0, "masks"))
    blank = TABLE[-1].log()  # the state in which everything is masked
    expected = blank.gather(1, WORLD.sequences.T).sum(0)
    torch.testing.assert_close(estimated(states), expected)


def test_the_upper_estimate_is_the_power_mean_over_orders():
    """(1/β) Σ_i log E_σ p_i^β, with p_i collected along every order."""
    sequences, log_table = WORLD.sequences, TABLE.log()
    terms = []
    for order in itertools.permutations(range(4)):
        x_t, found = sequences.clone(), torch.zeros(len(sequences), 4, dtype=torch.float64)
        for i in reversed(order):
            x_t[:, i] = 3
            number = (x_t * 4 ** torch.arange(3, -1, -1)).sum(1)
            found[:, i] = log_table[number, i, sequences[:, i]]
        terms.append(found)
    stacked = torch.stack(terms)
    for beta in (0.7, 1.5):
        expected = (torch.logsumexp(beta * stacked, 0) - math.log(24)).sum(1) / beta
        torch.testing.assert_close(upper(WORLD, TABLE, beta), expected, atol=1e-10, rtol=0)


def test_the_upper_estimate_rises_with_beta_from_the_lower_one():
    values = [lower(WORLD, TABLE), *(upper(WORLD, TABLE, beta) for beta in (0.01, 0.5, 1.0, 2.0, 4.0))]
    for below, above in itertools.pairwise(values):
        assert (above >= below - 1e-12).all()
    torch.testing.assert_close(values[1], values[0], atol=0.2, rtol=0)
    assert (values[-1] >= log_likelihood(WORLD, TABLE)).all()


@pytest.mark.parametrize("beta", [1.0, 1.5, 2.0])
def test_what_would_make_the_upper_estimate_a_bound_of_any_model(beta):
    """Either β/n as a factor, or a constant of n log(n C(n−1, ⌊(n−1)/2⌋)) − log n!; both are loose."""
    constant = 4 * math.log(4 * math.comb(3, 1)) - math.log(24)
    for seed, scale in enumerate((0.3, 1.0, 3.0, 9.0)):
        table = perturbed(WORLD.posterior(), seed, scale)
        exact, estimate = log_likelihood(WORLD, table), upper(WORLD, table, beta)
        assert (beta / 4 * estimate >= exact - 1e-12).all()
        assert (estimate + constant >= exact - 1e-12).all()
    world, sure = one_order()
    assert float((log_likelihood(world, sure) - upper(world, sure, beta))[0]) == pytest.approx(
        2 / beta * math.log(2) - math.log(2), abs=1e-6
    )


# ── finite draws ──────────────────────────────────────────────────────────────────────────────────


def test_a_position_masked_once_has_the_gradient_of_log_likelihood_whatever_beta():
    score = torch.randn(1, 2, 3, generator=stream(0, "scores")).requires_grad_()
    scored = torch.tensor([[[True, True, False], [False, True, False]]])
    for beta in (1.0, 2.0):
        value = eubo(score * scored, scored, torch.tensor([[1.5, 3.0]]), torch.tensor([3]), beta)
        (gradient,) = torch.autograd.grad(value.sum(), score)
        assert gradient[0, 0, 0] == pytest.approx(1.5)  # n/|U| = 3/2
        share = (beta * score[0, :, 1].detach() + torch.tensor([1.5, 3.0]).log()).softmax(0)
        assert gradient[0, :, 1].tolist() == pytest.approx((1.5 * share).tolist())
        assert gradient[0, :, 2].tolist() == [0, 0]


def test_tiny_probabilities_stay_finite():
    """p^β underflows at e^-300 even in float64; its logarithm does not."""
    score = torch.tensor([[[-300.0, -1e4]]]).requires_grad_()
    value = eubo(score, torch.ones(1, 1, 2).bool(), torch.ones(1, 1), torch.tensor([2]), 2.0)
    assert value.item() == pytest.approx(-10300)
    value.sum().backward()
    assert score.grad.flatten().tolist() == [1, 1]


def test_a_sequence_without_scored_positions_is_worth_nothing():
    score = torch.zeros(1, 2, 3, requires_grad=True)
    value = eubo(score, torch.zeros(1, 2, 3).bool(), torch.ones(1, 2), torch.tensor([3]), 1.5)
    value.sum().backward()
    assert value.item() == 0
    assert (score.grad == 0).all()


def test_a_mixture_lies_between():
    low, high = torch.tensor([-3.0]), torch.tensor([-1.0])
    assert [mixture(low, high, share).item() for share in (0.0, 0.25, 1.0)] == [-3, -2.5, -1]


# ── ratios ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("ratio", "advantage", "expected", "cut"),
    [
        (1.0, 2.0, 2.0, False),
        (1.3, 2.0, 2.6, False),
        (1.7, 2.0, 3.0, True),
        (0.3, 2.0, 0.6, False),
        (0.3, -2.0, -1.0, True),
        (1.7, -2.0, -3.4, False),
    ],
)
def test_a_clipped_ratio_by_hand(ratio, advantage, expected, cut):
    log_ratio, worth = torch.tensor([ratio]).log(), torch.tensor([advantage])
    assert clipped(log_ratio, worth, 0.5).item() == pytest.approx(expected)
    assert is_clipped(log_ratio, worth, 0.5).item() == cut


@pytest.mark.parametrize(("advantage", "value"), [(0.0, 0.0), (2.0, 3.0)])
def test_a_ratio_that_overflows_makes_no_nan(advantage, value):
    log_ratio = torch.tensor([500.0], requires_grad=True)
    gain = clipped(log_ratio, torch.tensor([advantage]), 0.5)
    gain.backward()
    assert gain.item() == pytest.approx(value)
    assert log_ratio.grad is not None
    assert log_ratio.grad.item() == 0


def test_k3_is_unbiased_and_never_negative():
    p = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
    q = torch.tensor([0.6, 0.1, 0.3], dtype=torch.float64)
    estimate = k3(q.log() - p.log())
    assert (estimate >= 0).all()
    assert float((p * estimate).sum()) == pytest.approx(float((p * (p / q).log()).sum()))
    assert k3(torch.zeros(1)).item() == 0


# ── the claims can fail ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "wrong", "number"),
    [
        ("elbo", lambda score, weight: score.sum(-1).mean(-1), "B1a"),
        ("elbo", lambda score, weight: 0.5 * (weight * score.sum(-1)).mean(-1), "B1b"),
        ("eubo", lambda score, scored, weight, length, beta: (weight * score.sum(-1)).mean(-1) - 1, "B2a"),
        ("eubo", lambda score, scored, weight, length, beta: (weight * score.sum(-1)).mean(-1), "B2b"),
    ],
)
def test_a_wrong_estimate_fails_its_claim(name, wrong, number, monkeypatch):
    monkeypatch.setattr(surrogates, name, wrong)
    (check,) = claims.run_claims([number])
    assert not check.passed
