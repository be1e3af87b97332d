r"""Claims on methods on a decoder's trajectory: their likelihood is exact, and their gradient is ∇E[r].

Every sequence, and every order in which it could be decoded, is a rollout here. A rollout's credit carries
its probability, so that the sums over rollouts that losses take are expectations.
"""

from __future__ import annotations

import itertools
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from dtm import tilts
from dtm.config import MethodConfig
from dtm.config.registry import load_method_class
from dtm.masking import LeftToRight, Masking, Planned, SampledSteps, TraceSegments
from dtm.masking.plan import Layout
from dtm.methods import surrogates
from dtm.methods.agrpo import AGRPOConfig
from dtm.methods.just_grpo import JustGRPOConfig
from dtm.models.policy import Policy
from dtm.random import stream
from dtm.records import Completions, MaskedStates, Phase, Weights
from dtm.verify.claims.check import claim
from dtm.verify.claims.population import Table, clean_rows, perturbed
from dtm.verify.exact import World, denoiser, ordered_log_laws, random_world

PHASE = Phase(index=0, tilt=0.0, step=1.0, reward_range=1.0)


def decoded(world: World, block: int | None) -> Completions:
    """Return every sequence in every order of decoding in blocks, in the order of `ordered_log_laws`."""
    size = block or world.length
    parts = [range(start, min(start + size, world.length)) for start in range(0, world.length, size)]
    orders = [sum(order, ()) for order in itertools.product(*map(itertools.permutations, parts))]
    steps = torch.tensor(orders).argsort(1).repeat_interleave(len(world.sequences), 0)
    clean = clean_rows(world, torch.arange(len(world.sequences)).repeat(len(orders)))
    nothing = torch.zeros(steps.shape, dtype=torch.float64)
    return Completions(clean.tokens, clean.attention, clean.is_completion, steps, nothing)


def estimated(table: Table, states: MaskedStates) -> Float[Tensor, " N"]:
    """Return `surrogates.bounds` of a tabular model."""
    with torch.no_grad():
        return surrogates.bounds(denoiser(table)(states.tokens, None, states.scored), states)


def _model(seed: int) -> tuple[World, Table]:
    """Return a world, and a model that is not the posterior of a law."""
    world = random_world(3, 3, seed=seed)
    return world, perturbed(world.posterior(), seed, scale=1.0)


@claim("B5a", "left to right: the sum over positions is the log-probability of that decoder", 1e-12)
def left_to_right_likelihood_is_exact() -> float:
    """Return the largest error against the law of decoding in blocks of one token."""
    world, table = _model(0)
    states = Planned(LeftToRight(world.length)).states(clean_rows(world), world.vocab, stream(0, "masks"))
    exact = ordered_log_laws(world, table, 1)[0]
    return float((estimated(table, states) - exact).abs().max())


@claim("B5b", "two of four positions, evenly spaced, estimate it without bias", 1e-12)
def subsampled_positions_are_unbiased() -> float:
    """Return the largest error of the mean over both offsets."""
    world = random_world(2, 4, seed=1)
    table, plan = perturbed(world.posterior(), 1, scale=1.0), LeftToRight(2)
    clean, found = clean_rows(world), []
    row = torch.arange(len(clean)).repeat_interleave(2)
    index = torch.arange(world.length).expand(len(row), -1)
    span = torch.full_like(row, world.length)
    written, zero = clean.is_completion[row], torch.zeros_like(span)
    layout = Layout(written, index, span, torch.zeros_like(written), 2, zero)
    for offset in (0.25, 0.75):
        masks = plan.at(layout, torch.full((len(clean),), offset, dtype=torch.float64))
        tokens = torch.where(masks.masked, world.vocab, clean.tokens[row])
        shape = span, world.length, len(row), span.sum()
        states = MaskedStates(tokens, clean.tokens[row], None, masks.scored, masks.weight, *shape, draws=2)
        found.append(estimated(table, states))
    exact = ordered_log_laws(world, table, 1)[0]
    return float((torch.stack(found).mean(0) - exact).abs().max())


@claim("B6", "all steps (AGRPO) and as many segments as steps (d2) give the trajectory's likelihood", 1e-12)
def trajectory_likelihood_is_exact() -> float:
    """Return the largest error over all orders, for any-order decoding and in blocks of 2."""
    deviations = []
    for seed, block in ((2, None), (3, 2)):
        world, table = _model(seed)
        exact = ordered_log_laws(world, table, block).flatten()
        for plan in (SampledSteps(world.length, even=1.0), TraceSegments(count=world.length)):
            states = Planned(plan).states(decoded(world, block), world.vocab, stream(0, "masks"))
            deviations.append(float((estimated(table, states) - exact).abs().max()))
    return max(deviations)


def method_gradient(
    config: MethodConfig, table: Table, rollouts: Completions, credit: Float[Tensor, " N"], block: int | None
) -> Table:
    """Return the gradient of a method's loss at π_θ = π_a = π_0 = ``table``, with N times the credits."""
    method = load_method_class(config.name)(config)
    masking: Masking = method.masks(block, -1)
    states = masking.states(rollouts, table.shape[2], stream(0, "masks"))
    policy = Policy(denoiser(table), keep_base=True)
    loss = method.loss(policy, states, credits_of(len(credit) * credit), PHASE)
    (gradient,) = torch.autograd.grad(loss.value, list(policy.student.parameters()))
    return gradient


def credits_of(credit: Float[Tensor, " N"]) -> Weights:
    """Return weights with the given credits, all in one group."""
    group = torch.zeros(len(credit), dtype=torch.long)
    return replace(tilts.weigh(torch.zeros_like(credit), group, 1.0), credit=credit)


def expected_reward(world: World, table: Table, block: int | None) -> tuple[Table, Float[Tensor, " N"]]:
    """Return ∇ E[r] of the decoder in the table's logits, and each rollout's probability · (r − E[r])."""
    logits = table.log().requires_grad_()
    laws = ordered_log_laws(world, logits.softmax(-1), block)
    probability = laws.exp() / len(laws)
    mean = (probability * world.reward).sum()
    (gradient,) = torch.autograd.grad(mean, logits)
    return gradient, (probability * (world.reward - mean)).detach().flatten()


@claim("F3a", "JustGRPO's gradient is −∇E[r] of decoding from left to right, over the length", 1e-7)
def just_grpo_climbs_the_reward_of_its_decoder() -> float:
    """Return the largest error of the gradient over all positions; row weights in single precision."""
    world, table = _model(4)
    exact, credit = expected_reward(world, table, 1)
    found = method_gradient(JustGRPOConfig(), table, decoded(world, 1), credit, 1)
    return float((found + exact / world.length).abs().max())


@claim("F3b", "AGRPO's gradient over all steps is −∇E[r] of decoding in random order, over the length", 1e-7)
def agrpo_climbs_the_reward_of_its_decoder() -> float:
    """Return the largest error of the gradient, any-order and in blocks of 2; row weights in float32."""
    deviations = []
    for seed, block in ((5, None), (6, 2)):
        world, table = _model(seed)
        exact, credit = expected_reward(world, table, block)
        settings = AGRPOConfig(steps=world.length, even=1.0)
        found = method_gradient(settings, table, decoded(world, block), credit, block)
        deviations.append(float((found + exact / world.length).abs().max()))
    return max(deviations)
