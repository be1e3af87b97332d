r"""Claims on estimates of log ρ_θ: whether they are bounds, and for which models.

Every mask that `UniformCount` could draw is a draw of the sequence here, so that the means that the
surrogates take are exact. log ρ_θ is that of decoding in random order.
"""

from __future__ import annotations

import itertools
import math

import torch
from jaxtyping import Float
from torch import Tensor

from dtm.masking import ActiveBlock, Planned
from dtm.masking.count_plans import hide
from dtm.masking.coupled import coupled_masks
from dtm.masking.plan import Layout
from dtm.methods import surrogates
from dtm.random import stream
from dtm.records import MaskedStates, Sequences
from dtm.verify.claims.check import claim
from dtm.verify.claims.population import Table, clean_rows, perturbed
from dtm.verify.exact import World, denoiser, ordered_log_laws, random_world


def every_count(clean: Sequences, mask_id: int) -> MaskedStates:
    """Return all (k, order) of `UniformCount`, equally likely, as the draws of each sequence."""
    length = int(clean.is_completion[0].sum())
    width = clean.tokens.shape[1]
    orders = torch.tensor(list(itertools.permutations(range(length))), dtype=torch.float64)
    orders = torch.nn.functional.pad(orders, (width - length, 0))
    count, order = torch.cartesian_prod(torch.arange(1, length + 1), torch.arange(len(orders))).unbind(1)
    draws = len(count)
    row = torch.arange(len(clean)).repeat_interleave(draws)
    count, order = count.repeat(len(clean)), order.repeat(len(clean))
    is_completion, span = clean.is_completion[row], torch.full_like(row, length)
    index = is_completion.long().cumsum(1) - 1
    layout = Layout(
        is_completion, index, span, torch.zeros_like(is_completion), draws, torch.zeros_like(span)
    )
    masked, scored = hide(layout, count, orders[order])
    tokens = torch.where(masked, mask_id, clean.tokens[row])
    weight = span.double() / count
    return MaskedStates(
        tokens, clean.tokens[row], None, scored, weight, span, length, len(row), span.sum(), draws
    )


def every_coupled(clean: Sequences, mask_id: int, pairs: int = 1) -> MaskedStates:
    """Repeat each sequence for every choice of ``pairs`` of coupled masks (`Coupled`), equally likely."""
    length, width = int(clean.is_completion[0].sum()), clean.tokens.shape[1]
    orders = torch.tensor(list(itertools.permutations(range(length))), dtype=torch.float64)
    orders = torch.nn.functional.pad(orders, (width - length, 0))
    single = torch.cartesian_prod(torch.arange(length + 1), torch.arange(len(orders)))
    choices = torch.tensor(list(itertools.product(range(len(single)), repeat=pairs))).flatten()
    size, order = single[choices.repeat_interleave(2)].repeat(len(clean), 1).unbind(1)
    row = torch.arange(len(clean)).repeat_interleave(2 * len(choices))
    is_completion, span = clean.is_completion[row], torch.full_like(row, length)
    index = is_completion.long().cumsum(1) - 1
    nothing = torch.zeros_like(is_completion)
    layout = Layout(is_completion, index, span, nothing, 2 * pairs, torch.zeros_like(span))
    masks = coupled_masks(layout, size, orders[order])
    tokens, total = torch.where(masks.masked, mask_id, clean.tokens[row]), span.sum()
    drawn = clean.tokens[row], None, masks.scored, masks.weight, span, length, len(row), total
    return MaskedStates(tokens, *drawn, draws=2 * pairs)


def _scores(table: Table, states: MaskedStates) -> Float[Tensor, "N M L"]:
    with torch.no_grad():
        log_pi = denoiser(table)(states.tokens, None, states.scored)
    return surrogates.token_scores(log_pi, states)


def lower(world: World, table: Table) -> Float[Tensor, " N"]:
    """Return the exact mean of the ELBO's estimate, for every sequence."""
    states = every_count(clean_rows(world), world.vocab)
    weight = surrogates.by_sequence(states.row_weight, states)
    return surrogates.elbo(_scores(table, states), weight)


def upper(world: World, table: Table, beta: float) -> Float[Tensor, " N"]:
    """Return the EUBO with every mask in its mean, for every sequence."""
    states = every_count(clean_rows(world), world.vocab)
    weight, score = surrogates.by_sequence(states.row_weight, states), _scores(table, states)
    length = surrogates.by_sequence(states.row_length, states)[:, 0]
    return surrogates.eubo(score, states.eligible.view(score.shape), weight, length, beta)


def log_likelihood(world: World, table: Table, block: int | None = None) -> Float[Tensor, " N"]:
    """Return log E_σ ∏ p_i, the likelihood of decoding in random order (within blocks)."""
    laws = ordered_log_laws(world, table, block)
    return laws.logsumexp(0) - math.log(len(laws))


def one_order() -> tuple[World, Table]:
    """Return a model of two tokens: certain of (0, 0) from left to right, and of other tokens in reverse."""
    world = random_world(2, 2, seed=0)
    table = torch.full((9, 2, 2), 1e-9, dtype=torch.float64)
    states = [tuple(state) for state in world.states.tolist()]
    nothing, first, second = states.index((2, 2)), states.index((0, 2)), states.index((2, 0))
    table[:, :, 1] = 1 - 1e-9
    table[nothing, 0], table[first, 1] = table[nothing, 0].flip(0), table[first, 1].flip(0)
    assert float(table[second, 0, 0]) < 1e-6
    return world, table


@claim("B1a", "ELBO: the mean of its estimate over all masks is Σ_i E_σ log p_i", 1e-12)
def elbo_is_unbiased() -> float:
    """Return the largest error of the mean, for models that are not the posterior of a law."""
    deviations = []
    for seed, prompt in ((0, 0), (1, 1)):
        world = random_world(3, 4, seed=seed, prompt=prompt)
        table = perturbed(world.posterior(), seed, scale=1.0)
        exact = ordered_log_laws(world, table, None).mean(0)
        deviations.append(float((lower(world, table) - exact).abs().max()))
    return max(deviations)


@claim("B1c", "coupled masks: the mean of their estimate over all masks is the ELBO too", 1e-6)
def coupled_elbo_is_unbiased() -> float:
    """Return the largest error of the mean, for models that are not the posterior of a law.

    With a prompt and without; row weights are in single precision.
    """
    deviations = []
    for seed, prompt in ((0, 0), (1, 1)):
        world = random_world(3, 4, seed=seed, prompt=prompt)
        table = perturbed(world.posterior(), seed, scale=1.0)
        states = every_coupled(clean_rows(world), world.vocab)
        with torch.no_grad():
            found = surrogates.bounds(denoiser(table)(states.tokens, None, states.scored), states)
        exact = ordered_log_laws(world, table, None).mean(0)
        deviations.append(float((found.view(len(exact), -1).mean(1) - exact).abs().max()))
    return max(deviations)


@claim("B1b", "ELBO ≤ log ρ_θ for any model (largest excess)", 1e-12)
def elbo_is_a_lower_bound() -> float:
    """Return the largest excess of the ELBO over log ρ_θ, for models with increasing noise."""
    world = random_world(3, 4, seed=2)
    tables = [perturbed(world.posterior(), seed, scale) for seed, scale in enumerate((0.0, 0.3, 1.0, 3.0))]
    return max(float((lower(world, table) - log_likelihood(world, table)).max()) for table in tables)


@claim("B2a", "EUBO ≥ log ρ_θ for every β if π_θ is the posterior of a law (largest shortfall)", 1e-12)
def eubo_bounds_consistent_models() -> float:
    """Return the largest shortfall of the EUBO, for posteriors; there ∏ p_i is equal for all orders."""
    world = random_world(3, 4, seed=3)
    table = world.posterior()
    exact = log_likelihood(world, table)
    return max(float((exact - upper(world, table, beta)).max()) for beta in (0.5, 1.0, 1.5, 2.0, 8.0))


@claim("B2b", "EUBO ≥ log ρ_θ for any model if β is at least the length (largest shortfall)", 1e-12)
def eubo_bounds_any_model_at_large_beta() -> float:
    """Return the largest shortfall of the EUBO at β = n; by Hölder's inequality, EUBO rises with β."""
    world = random_world(3, 4, seed=4)
    tables = [perturbed(world.posterior(), seed, scale) for seed, scale in enumerate((0.3, 1.0, 3.0))]
    gaps = [float((log_likelihood(world, t) - upper(world, t, 4.0)).max()) for t in tables]
    small, table = one_order()
    return max(*gaps, float((log_likelihood(small, table) - upper(small, table, 2.0)).max()))


@claim("B3", "EUBO at β = 1 falls short of log ρ_θ by log 2 for some model of two tokens", 0.693, "at least")
def eubo_is_no_bound_at_small_beta() -> float:
    """Return the shortfall for a model certain in only one order: ρ_θ = 1/2, but E p_1 · E p_2 = 1/4."""
    world, table = one_order()
    return float((log_likelihood(world, table) - upper(world, table, 1.0))[0])


def _blockwise(scores: str) -> tuple[Tensor, Tensor]:
    """Return SPG's estimate and the log-likelihood of block-by-block decoding, for blocks of one token."""
    world = random_world(3, 3, seed=5)
    table = perturbed(world.posterior(), 5, scale=1.0)
    # With as many draws as blocks, each block is chosen once, and a block of one has only one mask.
    plan = ActiveBlock(1, world.length, "active" if scores == "active" else "masked")
    states = Planned(plan).states(clean_rows(world), world.vocab, stream(0, "masks"))
    weight = surrogates.by_sequence(states.row_weight, states)
    return surrogates.elbo(_scores(table, states), weight), log_likelihood(world, table, block=1)


@claim(
    "B4a",
    "SPG's block-wise ELBO, which scores all masked positions, exceeds log ρ_θ somewhere",
    0.1,
    "at least",
)
def blockwise_elbo_is_no_bound() -> float:
    """Return the largest excess of SPG's estimate over log ρ_θ."""
    estimate, exact = _blockwise("masked")
    return float((estimate - exact).max())


@claim("B4b", "scoring the active block alone it is the bound of block-by-block decoding", 1e-12)
def active_blocks_give_the_bound() -> float:
    """Return the largest difference of the estimate and log ρ_θ; with one token per block they are equal."""
    estimate, exact = _blockwise("active")
    return float((estimate - exact).abs().max())
