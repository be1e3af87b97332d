"""Claims on groups of K completions of a prompt: the effect of a group mean on the minimiser.

For K = 2 the expectation over groups is a sum over all ordered pairs. A buffer that holds every pair,
each row with the pair's probability, is therefore exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from dtm import tilts
from dtm.methods import CDTM, CONTROL_VARIATES, ControlVariate
from dtm.methods.c_dtm import CDTMConfig
from dtm.records import Weights
from dtm.verify.claims.check import claim
from dtm.verify.claims.population import Table, evaluate, phase_of, policy, population, read_minimiser, worst
from dtm.verify.exact import World, random_world, score_mass

H = 2.0


def _world() -> World:
    return random_world(2, 3, seed=0)


def _fitted_over_pairs(control: ControlVariate, rescale: Callable[[Weights], Weights]) -> Table:
    """Return the minimiser of the production loss for a buffer of all pairs, weighed by `tilts.weigh`.

    ``rescale`` may change the weights within a pair; E[w | x_t] is taken after it.
    """
    world = _world()
    count = len(world.prob)
    pairs = torch.cartesian_prod(torch.arange(count), torch.arange(count))
    rows, group = pairs.flatten(), torch.arange(len(pairs)).repeat_interleave(2)
    probability = (world.prob[pairs].prod(1) / 2).repeat_interleave(2)
    weights = rescale(tilts.weigh(world.reward[rows], group, H, log_z=world.log_z(H)))
    everything = population(world, None, rows, probability)
    student = world.posterior()
    outcome = evaluate(
        CDTM(CDTMConfig(guard=False), control_variate=control),
        policy(student, student),
        everything.states,
        weights.select(everything.sequence),
        phase_of(world, H),
    )
    # E[weight | x_1] over the partner, then E[· | x_t].
    expected = torch.zeros(count, dtype=torch.float64)
    expected.index_add_(0, rows, probability * weights.log_weight.exp())
    return read_minimiser(outcome, student, score_mass(world, None), world.given_state(expected / world.prob))


def _deviation(fit: Table, expected: Table) -> float:
    return worst(fit, expected, _world(), None)


@claim("9a", "c = leave-one-out mean of the group (K = 2): the minimiser is π_{a+h}", 1e-12)
def leave_one_out_is_unbiased() -> float:
    """Return the distance of the minimiser from π_{a+h}, with the production's `leave_one_out`."""
    fit = _fitted_over_pairs(CONTROL_VARIATES["loo"], lambda w: w)
    return _deviation(fit, _world().tilted(H).posterior())


@claim("9b", "c = mean with the sample itself (K = 2): a damped step, (π_{a+h} + π_a) / 2", 1e-12)
def inclusive_mean_damps() -> float:
    """Return the distance of the minimiser from a damped step, for a c that depends on its own row."""
    fit = _fitted_over_pairs(lambda s, w, p: (w.log_weight.exp() + w.peers) / 2, lambda w: w)
    return _deviation(fit, (_world().tilted(H).posterior() + _world().posterior()) / 2)


@claim("9c", "weights over their leave-one-out mean, c = 1 (K = 2): the minimiser is π_{a+h}", 1e-12)
def leave_one_out_normalised_is_unbiased() -> float:
    """Return the distance of the minimiser from π_{a+h}; each prompt is only rescaled by E[1/peers]."""
    fit = _fitted_over_pairs(
        CONTROL_VARIATES["mean"], lambda w: replace(w, log_weight=w.log_weight - w.peers.log())
    )
    return _deviation(fit, _world().tilted(H).posterior())


@claim("9d", "weights over the group's own mean, c = 1 (K = 2): a tilt by E[K w / Σ w], not by w", 1e-12)
def self_normalised_tilts_less() -> float:
    """Return the distance of the minimiser from the tilt by softmax weights, which never exceed K."""
    world = _world()
    fit = _fitted_over_pairs(
        lambda s, w, p: torch.ones_like(w.peers),
        lambda w: replace(w, log_weight=w.log_weight - ((w.log_weight.exp() + w.peers) / 2).log()),
    )
    tilt = (H * world.reward).exp()
    capped = (2 * tilt[:, None] / (tilt[:, None] + tilt) * world.prob).sum(1)
    hits = torch.nn.functional.one_hot(world.sequences, world.vocab).double()
    joint = world.given_state(capped[:, None, None] * hits)
    return _deviation(fit, joint / world.given_state(capped)[:, None, None])
