"""Claims on the gradient of the c-DTM loss and on its variance."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from dtm import losses, tilts
from dtm.masking import MaskCount
from dtm.methods import CDTM
from dtm.methods.c_dtm import CDTMConfig
from dtm.random import stream
from dtm.verify.claims.check import claim
from dtm.verify.claims.population import (
    Population,
    Table,
    clean_rows,
    evaluate,
    perturbed,
    phase_of,
    policy,
    population,
    weights_of,
)
from dtm.verify.exact import World, random_world


def _position_gradients(
    world: World, everything: Population, student: Table, h: float, c: float
) -> Float[Tensor, "N V"]:
    """Return autograd of the production cross-entropy in the logits, at scored positions of a population.

    Here w and c are as in the paper, not divided by Z.
    """
    states = everything.states
    row = states.eligible.nonzero()[:, 0]
    state = world.denoiser().states(states.tokens)[row]
    position = states.eligible.nonzero()[:, 1]
    logits = student[state, position].log().requires_grad_()
    tilt = h * world.reward[everything.sequence[row]]
    loss = losses.c_dtm_cross_entropy(
        logits.log_softmax(-1),
        world.posterior()[state, position].log(),
        states.x1,
        tilt,
        torch.full_like(tilt, c),
    )
    return torch.autograd.grad(loss.sum(), logits)[0]


def _closed_form(
    world: World, everything: Population, student: Table, h: float, c: float
) -> Float[Tensor, "N V"]:
    """Return c (π_θ − π_a) + (w − c)(π_θ − e)."""
    states = everything.states
    row, position = states.eligible.nonzero().unbind(1)
    state = world.denoiser().states(states.tokens)[row]
    pi, pi_a = student[state, position], world.posterior()[state, position]
    e = F.one_hot(states.clean[row, position], world.vocab)
    weight = (h * world.reward[everything.sequence[row]]).exp()[:, None]
    return c * (pi - pi_a) + (weight - c) * (pi - e)


@claim(
    "7a", "the gradient in the logits is c (π_θ − π_a) + (w − c)(π_θ − e); at π_a only the second term", 1e-12
)
def gradient_closed_form() -> float:
    """Return the largest error of the closed form, at π_a and at a random student."""
    world, deviations = random_world(3, 4, seed=0), []
    everything = population(world, None)
    for student in (world.posterior(), perturbed(world.posterior(), 0)):
        for c in (0.0, 0.7, 1.0, 3.0):
            autograd = _position_gradients(world, everything, student, 1.5, c)
            closed = _closed_form(world, everything, student, 1.5, c)
            deviations.append(float((autograd - closed).abs().max()))
    return max(deviations)


def _constant_reward_gradient(dtype: torch.dtype) -> float:
    """Return the largest gradient of a batch with all rewards 0.7, student = teacher, c = mean."""
    world = random_world(3, 4, seed=1)
    rows = torch.multinomial(world.prob, 50, True, generator=stream(0, "buffer"))
    states = MaskCount().states(clean_rows(world, rows), world.vocab, stream(0, "masks"))
    models = policy(world.posterior(), world.posterior())
    models.student.to(dtype)
    models.teacher.to(dtype)
    weights = tilts.weigh(torch.full((50,), 0.7, dtype=dtype), torch.arange(50), 2.5)
    objective = CDTM(CDTMConfig(control_variate="mean"))
    return float(evaluate(objective, models, states, weights, phase_of(world, 2.5)).gradient.abs().max())


@claim("7b", "equal rewards and c = mean: no gradient (float64)", 1e-12)
def constant_reward_has_no_gradient() -> float:
    """Return the largest gradient of a batch drawn as in training, in float64."""
    return _constant_reward_gradient(torch.float64)


@claim("7c", "equal rewards and c = mean: no gradient (float32)", 1e-6)
def constant_reward_has_no_gradient_float32() -> float:
    """Return the largest gradient of the batch in float32."""
    return _constant_reward_gradient(torch.float32)


# ── variance ─────────────────────────────────────────────────────────────────────────────────────


def _second_moment(world: World, everything: Population, student: Table, h: float, c: float) -> float:
    """Return E|G_c|² of a one-row gradient; the gradient's mean does not depend on c."""
    gradient = _position_gradients(world, everything, student, h, c)
    return float((_squared_weights(everything) * gradient.square().sum(-1)).sum())


def _squared_weights(everything: Population) -> Float[Tensor, " N"]:
    """Return P(row) · (L/k)² at every scored position; positions are separate coordinates of a table."""
    row = everything.states.eligible.nonzero()[:, 0]
    return (everything.states.row_weight.square() / everything.probability)[row]


def _variance(world: World, student: Table, h: float, c: float) -> float:
    """Return the trace of the covariance of a one-row gradient, by enumeration."""
    everything = population(world, None)
    gradient = _position_gradients(world, everything, student, h, 0.0)
    row, position = everything.states.eligible.nonzero().unbind(1)
    state = world.denoiser().states(everything.states.tokens)[row]
    weighted = everything.states.row_weight[row, None] * gradient
    flat = torch.zeros(len(world.states) * world.length, world.vocab, dtype=torch.float64)
    mean = flat.index_add(0, state * world.length + position, weighted)
    return _second_moment(world, everything, student, h, c) - float(mean.square().sum())


def _best_constant(world: World, student: Table, h: float) -> tuple[float, float]:
    """Return c* and D, from the production's `control_moments`."""
    everything = population(world, None)
    states, weights = everything.states, _squared_weights(everything)
    row, position = states.eligible.nonzero().unbind(1)
    state = world.denoiser().states(states.tokens)[row]
    weight = (h * world.reward[everything.sequence[row]]).exp()
    pi, pi_a = student[state, position], world.posterior()[state, position]
    numerator, denominator = losses.control_moments(pi, pi_a, states.x1, weight)
    return float((weights * numerator).sum() / (weights * denominator).sum()), float(
        (weights * denominator).sum()
    )


@claim("8a", "Var(c) = Var(c*) + (c − c*)² D, with c* and D from `control_moments`, relative", 1e-10)
def variance_is_a_parabola() -> float:
    """Return the largest relative error of the parabola, with Var by enumeration, at π_a and elsewhere."""
    world, deviations = random_world(3, 3, seed=2), []
    for h in (0.5, 2.5):
        for student in (world.posterior(), perturbed(world.posterior(), 0)):
            best, curvature = _best_constant(world, student, h)
            lowest = _variance(world, student, h, best)
            for c in (0.0, 1.0, 2.0, 5.0):
                predicted = lowest + (c - best) ** 2 * curvature
                deviations.append(abs(_variance(world, student, h, c) / predicted - 1))
    return max(deviations)


@claim("8b", "the sums that `CDTM` logs for adaptive c give that c*, relative", 1e-10)
def logged_moments_give_best_constant() -> float:
    """Return the relative error of c* from the logged sums, for a batch that is the whole population."""
    copies = 120
    world, h = random_world(3, 3, seed=3, copies=copies), 1.5
    rows = torch.arange(27).repeat_interleave((world.prob * copies).round().long())
    everything = population(world, None, rows, torch.full((copies,), 1 / copies, dtype=torch.float64))
    batch = len(everything.sequence)
    states = replace(everything.states, row_weight=everything.states.row_weight * batch, batch_rows=batch)
    student = perturbed(world.posterior(), 0)
    weights = weights_of(world, h).select(rows[everything.sequence])
    models = policy(student, world.posterior())
    metrics = evaluate(CDTM(), models, states, weights, phase_of(world, h)).metrics
    best, _ = _best_constant(world, student, h)
    logged = metrics["control_numerator"] / metrics["control_denominator"] * math.exp(world.log_z(h))
    return abs(logged / best - 1)


@claim("8c", "at π_a and r ≥ 0, c = 1 has less variance than c = 0 (largest Var(1)/Var(0) − 1, h ≤ 6)", 0.0)
def unit_control_helps_at_phase_start() -> float:
    """Return the largest Var(1)/Var(0) − 1 over kinds of rewards and step sizes."""
    ratios = []
    for seed, kind in enumerate(["dense", "binary", "sudoku"]):
        world = random_world(3, 3, seed=seed, reward=kind)
        for h in (0.5, 2.5, 6.0):
            student = world.posterior()
            ratios.append(_variance(world, student, h, 1.0) / _variance(world, student, h, 0.0))
    return max(ratios) - 1


@claim("Prop. 3.3", "for small h, Var(∇ 1-DTM) ≤ Var(∇ 0-DTM) at any student (largest ratio, h = 0.05)", 1.0)
def unit_control_helps_for_small_steps() -> float:
    """Return the largest Var(1)/Var(0), for students away from π_a and rewards of both signs."""
    ratios = []
    for seed, kind in enumerate(["dense", "maze", "sign"]):
        world = random_world(3, 3, seed=seed, reward=kind)
        for student in (world.posterior(), perturbed(world.posterior(), seed, scale=1.0)):
            ratios.append(_variance(world, student, 0.05, 1.0) / _variance(world, student, 0.05, 0.0))
    return max(ratios)
