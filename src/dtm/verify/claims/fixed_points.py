r"""Claims on the fixed points of the newer methods: whether DTM's tilted law is one of them.

A buffer of ``copies`` rows is the law itself (`random_world`), and every mask is enumerated, so that losses
are population losses. A law is a fixed point where their gradient in the student's logits vanishes.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import scipy.optimize
import scipy.special
import torch
from jaxtyping import Float, Int
from torch import Tensor

from dtm.methods.agrpo import AGRPOConfig
from dtm.methods.base import Method
from dtm.methods.d2 import D2Config
from dtm.methods.dmpo import DMPO, Centring, DMPOConfig
from dtm.methods.espo import ESPO, ESPOConfig
from dtm.methods.gdsd import GDSD, GDSDConfig
from dtm.methods.just_grpo import JustGRPOConfig
from dtm.models.policy import Policy
from dtm.records import MaskedStates, Weights
from dtm.verify.claims.check import claim
from dtm.verify.claims.likelihoods import every_count, every_coupled
from dtm.verify.claims.population import Table, clean_rows, perturbed, policy
from dtm.verify.claims.trajectories import (
    PHASE,
    credits_of,
    decoded,
    expected_reward,
    method_gradient,
)
from dtm.verify.exact import World, ordered_log_laws, random_world, total_variation

PSI = 0.5


def buffer(world: World, copies: int) -> Int[Tensor, " N"]:
    """Return a buffer of sequences in the exact proportions of the law."""
    return torch.arange(len(world.prob)).repeat_interleave((world.prob * copies).round().long())


def steepness(method: Method, models: Policy, states: MaskedStates, weights: Weights) -> float:
    """Return the largest entry of the gradient of a loss in the student's logits."""
    loss = method.loss(models, states, weights, PHASE)
    (gradient,) = torch.autograd.grad(loss.value, list(models.student.parameters()))
    return float(gradient.abs().max())


# ── GDSD ─────────────────────────────────────────────────────────────────────────────────────────


def lambert_law(prob: Float[Tensor, " N"], target: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    r"""Minimise E_ρ (u − t)² over laws ρ e^u: u = t − W(κ e^t), W Lambert's function, E_ρ e^u = 1."""

    def change(kappa: float) -> Float[Tensor, " N"]:
        return target - torch.from_numpy(scipy.special.lambertw(kappa * target.exp().numpy()).real)

    def excess(kappa: float) -> float:
        return float((prob * change(kappa).exp()).sum()) - 1

    return prob * change(scipy.optimize.brentq(excess, 0.0, 10.0, xtol=1e-15)).exp()


def _single_token() -> tuple[World, Int[Tensor, " N"]]:
    """Return a world with completions of one token, for which a denoiser can represent any law."""
    world = random_world(6, 1, seed=0, copies=60)
    return world, buffer(world, 60)


@claim("F1a", "GDSD with the mean baseline: the minimiser is ρ e^u, u = ψA − W(κ e^{ψA})", 1e-12)
def gdsd_minimiser_is_lamberts() -> float:
    """Return the largest error of the minimiser's formula, for one token and leave-one-out credits."""
    world, rows = _single_token()
    method = GDSD(GDSDConfig(psi=PSI, baseline="loo", beta=0.0, epsilon=0.9))
    credit = method.credit(world.reward[rows], torch.zeros_like(rows))
    target = torch.zeros_like(world.prob).index_copy(0, rows, PSI * credit)
    law = lambert_law(world.prob, target)
    student = replace(world, log_prob=law.log())
    states = every_coupled(clean_rows(world, rows), world.vocab, pairs=2)
    weights = credits_of(credit.repeat_interleave(states.sequences // len(rows)))
    return steepness(method, policy(student.posterior(), world.posterior()), states, weights)


@claim(
    "F1b", "its distance from the tilted law falls at least sixfold when ψ is halved: O(ψ³)", 6.0, "at least"
)
def gdsd_with_the_mean_baseline_is_close_to_the_tilt() -> float:
    """Return the smallest factor between total variations at ψ = 1, ½, ¼, ⅛."""
    world = random_world(4, 3, seed=1)
    centred = world.reward - (world.prob * world.reward).sum()
    distance = [
        float(total_variation(lambert_law(world.prob, psi * centred), world.tilted(psi).prob))
        for psi in (1.0, 0.5, 0.25, 0.125)
    ]
    return min(before / after for before, after in itertools.pairwise(distance))


def _gdsd_at_the_tilt(preset: str) -> float:
    """Return the gradient of GDSD at π_θ = π_{a+ψ}, with credits r − log Z/ψ, over every pair of masks."""
    world = random_world(3, 2, seed=2, copies=40)
    rows = buffer(world, 40)
    if preset == "fixed":
        config = GDSDConfig(psi=PSI, beta=0.0, epsilon=0.9)
    else:  # published squares, but an inactive clamp and a target of the whole completion
        config = GDSDConfig(psi=PSI / world.length, beta=0.0, epsilon=0.9, preset="published")
    credit = world.reward[rows] - world.log_z(PSI) / PSI
    states = every_coupled(clean_rows(world, rows), world.vocab, pairs=2)
    weights = credits_of(credit.repeat_interleave(states.sequences // len(rows)))
    models = policy(world.tilted(PSI).posterior(), world.posterior())
    return steepness(GDSD(config), models, states, weights)


@claim(
    "F1c", "GDSD with the log-partition baseline and different masks: π_{a+ψ}, DTM's, is a fixed point", 1e-12
)
def tilted_law_is_a_fixed_point_of_gdsd() -> float:
    """Return the gradient of the fixed preset at π_{a+ψ}."""
    return _gdsd_at_the_tilt("fixed")


@claim("F1d", "with the squares of single masks it is not: gradient at π_{a+ψ}", 1e-3, "at least")
def squares_of_single_masks_move_the_fixed_point() -> float:
    """Return the gradient at π_{a+ψ} of the loss with squares, which has the variance over masks in it."""
    return _gdsd_at_the_tilt("published")


# ── DMPO ─────────────────────────────────────────────────────────────────────────────────────────

ALPHA = 0.5


def _dmpo_at_the_target(
    centring: Centring, drawn: World, rows: Int[Tensor, " M"], log_base: Float[Tensor, " N"]
) -> float:
    """Return the gradient of DMPO at π_θ = p* ∝ ρ_0 e^{r/α}, for rollouts of ``drawn``, exact log-ratios."""
    method, group = DMPO(DMPOConfig(alpha=ALPHA, centring=centring)), torch.zeros_like(rows)
    log_target = (log_base + drawn.reward / ALPHA).log_softmax(0)
    credit = method.credit(drawn.reward[rows], group, (log_base - drawn.log_prob)[rows])
    weights = credits_of(credit)
    if method.scores_first:
        weights = method.reweigh(weights, (log_target - drawn.log_prob)[rows])
    states = every_count(clean_rows(drawn, rows), drawn.vocab)
    student = replace(drawn, log_prob=log_target).posterior()
    return steepness(method, policy(student, drawn.posterior()), states, weights)


@claim("F2a", "DMPO, centring none or unbiased: π_0 e^{r/α}, DTM's at A = 1/α, is a fixed point", 1e-12)
def tilted_base_is_a_fixed_point_of_dmpo() -> float:
    """Return the gradient at the target, with rollouts of a π_a that is neither base nor target."""
    drawn, base = random_world(3, 3, seed=3, copies=60), random_world(3, 3, seed=4, spread=1.0)
    rows = buffer(drawn, 60)
    kinds: tuple[Centring, ...] = ("none", "unbiased")
    return max(_dmpo_at_the_target(kind, drawn, rows, base.log_prob) for kind in kinds)


def _dmpo_at_rest(centring: Centring) -> float:
    """Return the gradient at the target, with rollouts of the target itself: π_θ = π_a = p*."""
    target = random_world(3, 3, seed=5, copies=60)
    log_base = (target.log_prob - target.reward / ALPHA).log_softmax(0)
    return _dmpo_at_the_target(centring, target, buffer(target, 60), log_base)


@claim(
    "F2b", "DMPO with mean centring: a fixed point only in the sense that π_a = π_0 e^{r/α} is kept", 1e-12
)
def mean_centring_rests_at_the_target() -> float:
    """Return the gradient at π_θ = π_a = p*, where all weights equal their mean."""
    return _dmpo_at_rest("mean")


@claim("F2c", "as released (w⁻ centring) DMPO leaves its own target: gradient there", 0.01, "at least")
def negative_centring_leaves_the_target() -> float:
    """Return the gradient at π_θ = π_a = p*, where w⁺ is uniform and w⁻ is not."""
    return _dmpo_at_rest("negative")


# ── policy gradients ─────────────────────────────────────────────────────────────────────────────


@claim("F3c", "ESPO's gradient where the policies agree is −E[A ∇ELBO] over the length", 1e-7)
def espo_starts_as_a_policy_gradient_of_the_bound() -> float:
    """Return the error of the gradient at π_θ = π_a = π_0, over every mask and sequence."""
    world = random_world(3, 3, seed=6)
    table = perturbed(world.posterior(), 6, scale=1.0)
    credit = world.prob * (world.reward - (world.prob * world.reward).sum())
    logits = table.log().requires_grad_()
    bound = ordered_log_laws(world, logits.softmax(-1), None).mean(0)
    (exact,) = torch.autograd.grad((credit * bound).sum(), logits)
    states = every_coupled(clean_rows(world), world.vocab)
    weights = credits_of(len(credit) * credit).select(
        torch.arange(len(credit)).repeat_interleave(states.sequences // len(credit))
    )
    models = Policy(policy(table, table).student, keep_base=True)
    loss = ESPO(ESPOConfig()).loss(models, states, weights, PHASE)
    (found,) = torch.autograd.grad(loss.value, list(models.student.parameters()))
    return float((found + exact / world.length).abs().max())


@claim(
    "F3d",
    "no tilted law is a fixed point of JustGRPO, AGRPO, ESPO or d2: gradient at π_a e^{r}",
    1e-3,
    "at least",
)
def policy_gradients_do_not_rest_at_a_tilt() -> float:
    """Return the smallest gradient over the methods, which increase the reward at any tilt."""
    world = random_world(3, 3, seed=7)
    table = perturbed(world.tilted(1.0).posterior(), 0, scale=0.0)
    found = []
    for config, block in (
        (JustGRPOConfig(), 1),
        (AGRPOConfig(steps=3, even=1.0), None),
        (ESPOConfig(), None),
        (D2Config(segments=3), None),
    ):
        _, credit = expected_reward(world, table, block)
        gradient: Table = method_gradient(config, table, decoded(world, block), credit, block)
        found.append(float(gradient.abs().max()))
    return min(found)
