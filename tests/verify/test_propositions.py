"""The paper's propositions by name, on random worlds; and claims that fail when the code is wrong."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from dtm import engine, losses, tilts
from dtm.engine import Decoder
from dtm.masking import mask_count
from dtm.methods import CONTROL_VARIATES, c_dtm
from dtm.verify import claims
from dtm.verify.claims import population as bridge
from dtm.verify.claims import variance
from dtm.verify.exact import decoder_law, kl, path_kl, random_world, score_mass

few = settings(max_examples=8, deadline=None, derandomize=True)
worlds = st.builds(
    random_world,
    vocab=st.integers(2, 3),
    length=st.just(3),
    seed=st.integers(0, 10_000),
    reward=st.sampled_from(["dense", "binary", "sudoku", "maze", "sign"]),
    prompt=st.integers(0, 1),
)
steps = st.floats(0.05, 6.0)
blocks = st.sampled_from([None, 1, 2])


@few
@given(world=worlds, h=steps, seed=st.integers(0, 99))
def test_prop_3_1_esscher(world, h, seed):
    """E_{a+h}[G | x_t] = E_a[G e^{hr} | x_t] / E_a[e^{hr} | x_t] for any G(x_1), indicators included."""
    weight = tilts.weigh(world.reward, torch.arange(len(world.reward)), h).log_weight.exp()
    noise = torch.randn(len(weight), 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    hits = F.one_hot(world.sequences, world.vocab).double().flatten(1)
    functional = torch.cat([noise, hits], 1)
    reweighted = world.given_state(weight[:, None] * functional) / world.given_state(weight)[:, None]
    tilted = world.jointly_tilted(h).given_state(functional)
    torch.testing.assert_close(tilted, reweighted, atol=1e-11, rtol=0)


@few
@given(world=worlds, h=steps, seed=st.integers(0, 99), block=blocks)
def test_prop_3_2_minimiser_is_the_tilted_posterior(world, h, seed, block):
    control = bridge.by_state(world, bridge.random_control(world, seed))
    fit = bridge.fitted(world, h, control, block, student=bridge.perturbed(world.posterior(), seed))
    assert bridge.worst(fit, world.tilted(h).posterior(), world, block) < 1e-10


@few
@given(world=worlds, seed=st.integers(0, 99))
def test_prop_3_3_control_variate_reduces_variance_for_small_h(world, seed):
    student = bridge.perturbed(world.posterior(), seed)
    with_control = variance._variance(world, student, 0.02, 1.0)
    assert with_control <= variance._variance(world, student, 0.02, 0.0)


@few
@given(world=worlds, h=st.floats(0.05, 3.0), seed=st.integers(0, 99), block=blocks)
def test_prop_3_4_excess_loss_bounds_terminal_kl(world, h, seed, block):
    student = bridge.perturbed(world.posterior(), seed, scale=1.0)
    control = bridge.by_state(world, bridge.random_control(world, seed))
    target = world.jointly_tilted(h)
    losses = [
        bridge.tilt_outcome(world, table, h, control, block).loss for table in (student, target.posterior())
    ]
    excess = losses[0] - losses[1]
    assert excess == pytest.approx(path_kl(target, student, block), rel=1e-8)
    law = decoder_law(student, Decoder(block=block), target.log_prompt().exp())
    assert kl(target.log_prob, law.log()) <= excess + 1e-10


@few
@given(world=worlds, h=steps, block=st.sampled_from([1, 2]))
def test_sar_appendix_changes_states_and_not_the_target(world, h, block):
    """Fewer states are visited in blocks; where they are, the minimiser is the any-order one."""
    visited, everywhere = score_mass(world, block) > 0, score_mass(world, None) > 0
    assert (visited <= everywhere).all()
    assert visited.sum() < everywhere.sum()
    mean = CONTROL_VARIATES["mean"]
    in_blocks, any_order = bridge.fitted(world, h, mean, block), bridge.fitted(world, h, mean, None)
    torch.testing.assert_close(in_blocks[visited], any_order[visited], atol=1e-10, rtol=0)


# ── the claims can fail ──────────────────────────────────────────────────────────────────────────


def paper_erratum(log_pi, log_pi_a, x1, log_weight, control, keep=None):
    """T_c = c π_a + ((w − c)/w) 1{x_1}, as in the paper's variance proof."""
    distillation = -(log_pi_a.exp() * log_pi).sum(-1)
    hit = log_pi.gather(-1, x1[:, None]).squeeze(-1)
    return control * log_weight.exp() * distillation - (log_weight.exp() - control) * hit


def unweighted_cells(is_completion, cell, order, block):
    """Row weights of 1 instead of L/k."""
    masked, eligible, _ = mask_count.mask_cells(is_completion, cell, order, block)
    return masked, eligible, is_completion.sum(1)


def leftmost_cells(is_completion, cell, order, block, lead=None):
    """Masks that do not heed the random order."""
    return true_mask_cells(is_completion, cell, torch.zeros_like(order).cumsum(1), block, lead)


true_mask_cells, true_guard, true_gain = (
    mask_count.mask_cells,
    losses.within_ratio_bound,
    losses.gained_kl,
)


class Greedy:
    """Looks at the drawn token, and claims to be exact."""

    reads_posterior = True
    exact = True

    def score(self, log_pi, drawn, noise):
        return log_pi.gather(-1, drawn[:, None]).squeeze(-1)


def warm(model, prompts, length, decoder, **settings):
    """Samples at temperature 0.8, whatever it is told."""
    other = Decoder(order=decoder.order, block=decoder.block, temperature=0.8)
    return engine.generate(model, prompts, length, other, **settings)


MUTATIONS = {
    "erratum-2a": ("2a", losses, "c_dtm_cross_entropy", paper_erratum),
    "erratum-2b": ("2b", losses, "c_dtm_cross_entropy", paper_erratum),
    "erratum-7a": ("7a", losses, "c_dtm_cross_entropy", paper_erratum),
    "weights-of-1-5a": ("5a", bridge, "mask_cells", unweighted_cells),
    "weights-of-1-5b": ("5b", bridge, "mask_cells", unweighted_cells),
    "weights-of-1-6a": ("6a", bridge, "mask_cells", unweighted_cells),
    "weights-of-1-mdm": ("Eq. 6", bridge, "mask_cells", unweighted_cells),
    "leftmost-masks-4b": ("4b", bridge, "mask_cells", leftmost_cells),
    "leftmost-masks-4c": ("4c", mask_count, "mask_cells", leftmost_cells),
    "biased-order": ("1b", claims.decoding, "ORDERS", {"greedy": Greedy}),
    "warm-sampler-1c": ("1c", claims.decoding, "generate", warm),
    "warm-sampler-12d": ("12d", claims.decoding, "generate", warm),
    "tight-guard": ("11b", losses, "within_ratio_bound", lambda q, g, bound: true_guard(q, g, bound / 4)),
    "gained-twice": ("6a", losses, "gained_kl", lambda *arguments: 2 * true_gain(*arguments)),
    "naive-weights": ("13a", losses, "advantage", lambda log_w, c: (log_w + 500).exp() - c * math.exp(500)),
    "no-bisection": ("16a", tilts, "step_for_ess", lambda reward, target, cap: cap),
}


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_wrong_implementation_fails_its_claim(mutation, monkeypatch):
    number, module, name, wrong = MUTATIONS[mutation]
    monkeypatch.setattr(module, name, wrong)
    (check,) = claims.run_claims([number])
    assert not check.passed


@pytest.mark.parametrize(("number", "wrong"), [("9a", "inclusive"), ("10b", "one"), ("15a", "zero")])
def test_a_wrong_control_variate_fails_its_claim(number, wrong, monkeypatch):
    controls = {**CONTROL_VARIATES, "inclusive": lambda s, w, p: (w.log_weight.exp() + w.peers) / 2}
    for name in ("loo", "mean"):
        monkeypatch.setitem(CONTROL_VARIATES, name, controls[wrong])
    (check,) = claims.run_claims([number])
    assert not check.passed


def test_wrong_moments_fail_the_variance_parabola(monkeypatch):
    def without_overlap(pi, pi_a, x1, weight):
        numerator, denominator = moments(pi, pi_a, x1, weight)
        return numerator - weight * (pi * pi_a).sum(-1), denominator

    moments = losses.control_moments
    monkeypatch.setattr(losses, "control_moments", without_overlap)
    (check,) = claims.run_claims(["8a"])
    assert not check.passed


def test_the_objective_calls_the_patched_mathematics():
    """Mutations reach the objective only because it looks its functions up in `losses`."""
    assert c_dtm.losses is losses
