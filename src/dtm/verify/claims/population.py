r"""Populations: every possible row of a batch with its probability, to run production code in expectation.

The masks come from the production's `mask_cells`, for every cell and every ordering. A row's
probability is folded into its ``row_weight`` and ``batch_rows`` is 1, so that the mean over the batch
that an objective takes is the exact expectation.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dtm import tilts
from dtm.masking.mask_count import mask_cells
from dtm.methods import CDTM, ControlVariate
from dtm.methods.c_dtm import CDTMConfig
from dtm.models.policy import Policy
from dtm.random import stream
from dtm.records import MaskedStates, Phase, Sequences, Weights
from dtm.verify.exact import World, denoiser, number, score_mass

Table = Float[Tensor, "S L V"]


@dataclass(frozen=True, slots=True)
class Population:
    """All pairs (x_1, x_t), their probabilities, and the row of each x_1."""

    states: MaskedStates
    sequence: Int[Tensor, " B"]
    """Number of the clean row of each state."""
    probability: Float[Tensor, " B"]
    """Probabilities of the states, which sum to 1."""


def clean_rows(world: World, rows: Int[Tensor, " N"] | None = None) -> Sequences:
    """Return sequences of the world as records; by default each once."""
    tokens = world.sequences if rows is None else world.sequences[rows]
    written = (torch.arange(world.length) >= world.prompt).expand(tokens.shape)
    return Sequences(tokens, torch.ones_like(written), written)


def every_mask(
    is_completion: Bool[Tensor, "N L"], block: int | None
) -> tuple[Int[Tensor, " B"], Bool[Tensor, "B L"], Bool[Tensor, "B L"], Int[Tensor, " B"]]:
    """Return row, masked, eligible and k of `mask_cells`, for each row × cell × ordering, equally likely."""
    rows, width = is_completion.shape
    length = int(is_completion[0].sum())
    orders = torch.tensor(list(itertools.permutations(range(length))), dtype=torch.float64)
    orders = torch.nn.functional.pad(orders, (width - length, 0))
    row, cell, order = torch.cartesian_prod(
        torch.arange(rows), torch.arange(length), torch.arange(len(orders))
    ).unbind(1)
    return row, *mask_cells(is_completion[row], cell, orders[order], block)


def population(
    world: World,
    block: int | None,
    rows: Int[Tensor, " N"] | None = None,
    probability: Float[Tensor, " N"] | None = None,
) -> Population:
    """Return the law of (x_1, x_t) for clean ``rows`` of given probability; by default the world's law."""
    clean = clean_rows(world, rows)
    prob = world.prob if probability is None else probability
    row, masked, eligible, count = every_mask(clean.is_completion, block)
    length = world.length - world.prompt
    share = prob[row] * len(clean) / len(row)
    states = MaskedStates(
        tokens=torch.where(masked, world.vocab, clean.tokens[row]),
        clean=clean.tokens[row],
        attention=clean.attention[row],
        eligible=eligible,
        row_weight=length / count.double() * share,
        row_length=torch.full_like(count, length),
        length=length,
        batch_rows=1,
        batch_length=torch.tensor(length),
    )
    return Population(states, row, share)


# ── control variates and models ──────────────────────────────────────────────────────────────────


def by_state(world: World, values: Float[Tensor, " S"]) -> ControlVariate:
    """Return a control variate c̄(x_t), from a value for every state."""
    return lambda states, weights, phase: values[number(states.tokens, world.vocab + 1)]


def random_control(world: World, seed: int) -> Float[Tensor, " S"]:
    """Return a random c̄(x_t) in [−1, 2] for every state."""
    draw = torch.rand(len(world.states), generator=stream(seed, "control"), dtype=torch.float64)
    return 3 * draw - 1


def perturbed(table: Table, seed: int, scale: float = 0.5) -> Table:
    """Add Gaussian noise to the logits of a table."""
    noise = torch.randn(table.shape, generator=stream(seed, "noise"), dtype=torch.float64)
    return (table.clamp(min=1e-300).log() + scale * noise).softmax(-1)


def policy(student: Table, teacher: Table) -> Policy:
    """Return a policy whose student and teacher have the given posteriors."""
    models = Policy(denoiser(student))
    models.teacher = denoiser(teacher).requires_grad_(False)
    return models


def phase_of(world: World, h: float) -> Phase:
    """Return the phase a → a + h of this world."""
    return Phase(index=0, tilt=0.0, step=h, reward_range=world.reward_range)


def weights_of(world: World, h: float) -> Weights:
    """Return w̄ of every sequence of the world, normalised by the true Z."""
    return tilts.weigh(world.reward, torch.arange(len(world.reward)), h, log_z=world.log_z(h))


# ── the production objective in the population ───────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Outcome:
    """The production loss over a whole population, in nats per sequence."""

    loss: float
    gradient: Table
    """Gradient with respect to the student's logits."""
    metrics: dict[str, float]


def evaluate(objective: CDTM, models: Policy, batch: MaskedStates, weights: Weights, phase: Phase) -> Outcome:
    """Compute loss, gradient and metrics, without the objective's division by the length."""
    loss = objective.loss(models, batch, weights, phase)
    (gradient,) = torch.autograd.grad(loss.value, list(models.student.parameters()))
    metrics = {name: float(value) for name, value in loss.metrics.items()}
    return Outcome(loss.value.item() * batch.length, gradient * batch.length, metrics)


def tilt_outcome(
    world: World,
    student: Table,
    h: float,
    control: ControlVariate,
    block: int | None,
    *,
    teacher: Table | None = None,
    guard: bool = False,
) -> Outcome:
    """Compute the population c-DTM loss of ``student`` in the phase a → a + h; the default teacher is π_a."""
    everything = population(world, block)
    models = policy(student, world.posterior() if teacher is None else teacher)
    weights = weights_of(world, h).select(everything.sequence)
    return evaluate(
        CDTM(CDTMConfig(guard=guard), control_variate=control),
        models,
        everything.states,
        weights,
        phase_of(world, h),
    )


def read_minimiser(
    outcome: Outcome, student: Table, mass: Float[Tensor, "S L"], weight: Float[Tensor, " S"]
) -> Table:
    r"""Return the table at which the loss is stationary, from one gradient (0 where nothing is scored).

    The gradient in the logits is mass · (E[w̄|x_t] π_θ − E[w̄ T_c|x_t]), so the minimiser
    E[w̄ T_c|x_t] / E[w̄|x_t] is π_θ − gradient / (mass · E[w̄|x_t]).
    """
    scale = (mass * weight[:, None])[..., None]
    return torch.where(scale > 0, student - outcome.gradient / scale.clamp(min=1e-300), 0.0)


def fitted(
    world: World,
    h: float,
    control: ControlVariate,
    block: int | None,
    *,
    student: Table | None = None,
    teacher: Table | None = None,
) -> Table:
    """Return the minimiser of the production loss in the population limit, at scored positions."""
    student = world.posterior() if student is None else student
    outcome = tilt_outcome(world, student, h, control, block, teacher=teacher)
    weight = world.given_state((h * world.reward - world.log_z(h)).exp())
    return read_minimiser(outcome, student, score_mass(world, block), weight)


def worst(table: Table, expected: Table, world: World, block: int | None) -> float:
    """Return the largest difference of two tables at the scored positions."""
    return float((table - expected).abs().amax(-1)[score_mass(world, block) > 0].max())
