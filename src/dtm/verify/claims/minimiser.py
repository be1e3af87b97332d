"""Claims on the tilt and on the minimiser of the c-DTM loss."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from dtm import tilts
from dtm.masking import MaskCount
from dtm.methods import CDTM, CONTROL_VARIATES
from dtm.methods.c_dtm import CDTMConfig
from dtm.random import stream
from dtm.records import MaskedStates
from dtm.verify.claims.check import claim
from dtm.verify.claims.population import (
    Table,
    by_state,
    clean_rows,
    evaluate,
    fitted,
    perturbed,
    phase_of,
    policy,
    population,
    random_control,
    tilt_outcome,
    weights_of,
    worst,
)
from dtm.verify.exact import REWARDS, World, population_loss, random_world, score_mass, total_variation


@claim("1a", "Proposition 3.1 (Esscher): π_{a+h}(v|x_t) = E_a[w 1{x_1=v} | x_t] / E_a[w | x_t]", 1e-12)
def esscher() -> float:
    """Return the largest error of the teacher's posterior reweighted by `tilts.weigh`."""
    deviations = []
    for kind in REWARDS:
        for h in (0.5, 2.5, 6.0):
            world = random_world(4, 4, seed=0, reward=kind)
            weight = weights_of(world, h).log_weight.exp()
            hits = F.one_hot(world.sequences, world.vocab).double()
            joint = world.given_state(weight[:, None, None] * hits)
            reweighted = joint / world.given_state(weight)[:, None, None]
            deviations.append(float((reweighted - world.tilted(h).posterior()).abs().max()))
    return max(deviations)


@claim("2a", "Proposition 3.2: c-DTM's minimiser is π_{a+h}, for any c(x_t)", 1e-11)
def minimiser_is_tilted_posterior() -> float:
    """Return the larger of two errors: of the minimiser read from a gradient, and of that at π_{a+h}."""
    deviations = []
    for seed, (h, block) in enumerate([(0.5, None), (2.5, 2), (6.0, None), (6.0, 1)]):
        world = random_world(4, 4, seed=seed)
        target = world.tilted(h).posterior()
        control = by_state(world, random_control(world, seed))
        fit = fitted(world, h, control, block, student=perturbed(world.posterior(), seed))
        deviations.append(worst(fit, target, world, block))
        gradient = tilt_outcome(world, target, h, control, block, guard=True).gradient
        mass = score_mass(world, block)
        deviations.append(float((gradient.abs().amax(-1)[mass > 0] / mass[mass > 0]).max()))
    return max(deviations)


@claim("2b", "the population c-DTM loss of any student is the same for all c(x_t)", 1e-12)
def population_loss_is_free_of_c() -> float:
    """Return the relative spread of the production loss over control variates and the oracle's loss."""
    deviations = []
    for seed, (h, block) in enumerate([(0.5, None), (2.5, 2), (6.0, None)]):
        world = random_world(4, 4, seed=seed)
        student = perturbed(world.posterior(), seed)
        zero = torch.zeros(len(world.states), dtype=torch.float64)
        exact = population_loss(world, student, h, zero, block) / math.exp(world.log_z(h))
        controls = [CONTROL_VARIATES[name] for name in ("zero", "one", "mean", "adaptive")]
        controls.append(by_state(world, random_control(world, seed)))
        losses = [tilt_outcome(world, student, h, control, block).loss for control in controls]
        deviations += [abs(loss / exact - 1) for loss in losses]
    return max(deviations)


def erratum_minimiser(world: World, h: float, c: float) -> Table:
    """Return the minimiser of the target in the paper's variance proof: c π_a + ((w − c)/w) 1{x_1}."""
    weight = (h * world.reward).exp()
    hits = F.one_hot(world.sequences, world.vocab).double()
    target = c * world.given_state(weight)[:, None, None] * world.posterior()
    target = target + world.given_state((weight - c)[:, None, None] * hits)
    return target / target.sum(-1, keepdim=True)


@claim(
    "3", "the target in the paper's variance proof is biased: mean TV to c-DTM's minimiser", 0.01, "at least"
)
def erratum_is_biased() -> float:
    """Return the smallest mean total variation between both minimisers over worlds, at h = 2.5, c = 1."""
    errors = []
    for seed in range(3):
        world = random_world(4, 4, seed=seed)
        world = World(world.vocab, world.length, world.log_prob, 2 * world.reward - 1)
        fit = fitted(world, 2.5, CONTROL_VARIATES["one"], None)
        mass = score_mass(world, None)
        distance = total_variation(erratum_minimiser(world, 2.5, 1.0), fit)
        errors.append(float((mass * distance).sum() / mass.sum()))
    return min(errors)


@claim("10a", "adding b(p) to the rewards of each prompt leaves the minimiser", 1e-12)
def shifted_rewards_keep_the_minimiser() -> float:
    """Return the largest change of the minimiser, for three prompts with shifts between −1 and 2."""
    world, h, deviations = random_world(3, 4, seed=7, prompt=1), 1.0, []
    shift = torch.tensor([-1.0, 0.5, 2.0], dtype=torch.float64).repeat_interleave(27)
    shifted = World(3, 4, world.log_prob, world.reward + shift, prompt=1)
    for name in ("zero", "one", "mean"):
        fit = fitted(shifted, h, CONTROL_VARIATES[name], None)
        deviations.append(worst(fit, world.tilted(h).posterior(), world, None))
    return max(deviations)


def _shift_effect(name: str) -> float:
    """Return the change of the loss of a finite batch when 0.4 is added to every reward."""
    world, h = random_world(4, 4, seed=8), 2.5
    rows = torch.multinomial(world.prob, 64, True, generator=stream(0, "buffer"))
    states = MaskCount().states(clean_rows(world, rows), world.vocab, stream(0, "masks"))
    models = policy(perturbed(world.posterior(), 0), world.posterior())

    def loss(shift: float) -> float:
        weights = tilts.weigh(world.reward[rows] + shift, torch.arange(64), h)
        objective = CDTM(CDTMConfig(control_variate=name, guard=False))
        return evaluate(objective, models, states, weights, phase_of(world, h)).loss

    return abs(loss(0.4) - loss(0.0))


@claim("10b", "with c = mean the loss of a batch does not change when all rewards are shifted", 1e-12)
def mean_control_is_shift_invariant() -> float:
    """Return the change of the loss for a finite buffer, normalised by its own log-mean-exp."""
    return _shift_effect("mean")


@claim("10c", "with c = 1 it does: change of the loss when 0.4 is added to all rewards", 1e-3, "at least")
def unit_control_is_not_shift_invariant() -> float:
    """Return the change of the loss for the same buffer and masks."""
    return _shift_effect("one")


@claim("11a", "every ratio π_{a+h}/π_a lies in e^{±h·range(r)} (largest excess of its log)", 0.0)
def ratio_bound() -> float:
    """Return the largest excess over all states, positions and tokens, for every kind of reward."""
    excess = []
    for kind in REWARDS:
        for h in (0.5, 2.5, 6.0):
            world = random_world(4, 4, seed=9, reward=kind)
            before, after = world.posterior(), world.tilted(h).posterior()
            log_ratio = (after.log() - before.log())[(before > 0) & (before < 1)]
            excess.append(float(log_ratio.abs().max()) - h * world.reward_range)
    return max(excess)


@claim("11b", "the ratio guard is never active at π_θ = π_{a+h} (share of positions guarded)", 0.0)
def guard_spares_the_minimiser() -> float:
    """Return the largest share of guarded positions over every state, for several control variates."""
    shares = []
    for kind in REWARDS:
        world, h = random_world(3, 4, seed=10, reward=kind), 2.5
        student = world.tilted(h).posterior()
        for name in ("zero", "one", "mean"):
            outcome = tilt_outcome(world, student, h, CONTROL_VARIATES[name], None, guard=True)
            shares.append(outcome.metrics["guarded"])
    return max(shares)


@claim("SAR", "SAR appendix: in blocks the posterior given x_t is π_a, the any-order one", 1e-12)
def sar_posterior_is_any_order_posterior() -> float:
    """Return the largest error of P[x_1^i = v | x_t], counted over every clean sequence and mask."""
    deviations = []
    for block in (1, 2, 3):
        world = random_world(3, 4, seed=11)
        everything = population(world, block)
        joint = _tally(world, everything.states, everything.probability)
        counted = joint / joint.sum(-1, keepdim=True).clamp(min=1e-300)
        deviations.append(worst(counted, world.posterior(), world, block))
    return max(deviations)


def _tally(world: World, states: MaskedStates, probability: torch.Tensor) -> Table:
    """Compute P[x_t = s, x_1^i = v] over the rows of a population."""
    state = world.denoiser().states(states.tokens)
    joint = torch.zeros(len(world.states), world.length, world.vocab, dtype=torch.float64)
    hits = F.one_hot(states.clean, world.vocab).double()
    return joint.index_add(0, state, probability[:, None, None] * hits)
