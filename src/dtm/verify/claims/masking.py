"""Claims on the masking interpolant: three equal forms of the objective, and the sampler of masks."""

from __future__ import annotations

import itertools
import math

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dtm.masking import MaskCount
from dtm.random import stream
from dtm.records import Sequences
from dtm.verify.claims.check import claim
from dtm.verify.claims.decoding import chi_square
from dtm.verify.claims.population import clean_rows, every_mask
from dtm.verify.exact import World, random_world, scored
from dtm.verify.hazard import hazard_states
from dtm.verify.schedules import SCHEDULES, Schedule


def _patterns(world: World, block: int | None) -> tuple[Float[Tensor, " P"], Int[Tensor, " P"]]:
    """Return the oracle's hazard 1 / (k C(B, k)), and k, of each masked set; sets are numbered in binary."""
    law = scored(world, block)
    # A state with token 0 at revealed positions represents its masked set.
    blank = ((world.states == world.vocab) | (world.states == 0)).all(1)
    return law.hazard[blank], law.eligible[blank].sum(1)


def _set_number(masked: Bool[Tensor, "B L"]) -> Int[Tensor, " B"]:
    """Return the row of a masked set in `_patterns`."""
    return (masked * 2 ** torch.arange(masked.shape[1] - 1, -1, -1)).sum(1)


def _hazard_integral(clean: Sequences, schedule: Schedule, block: int | None) -> Float[Tensor, " P"]:
    """Compute ∫ λ_SAR(t) P[masked set at t] dt by quadrature over t and every reveal subset."""
    length = clean.tokens.shape[1]
    blocks = length // (block or length)
    node, weight = (torch.from_numpy(v) for v in np.polynomial.legendre.leggauss(48))
    local = (node + 1) / 2
    subsets = torch.tensor(list(itertools.product([0.0, 2.0], repeat=length)), dtype=torch.float64)
    total = torch.zeros(2**length, dtype=torch.float64)
    for b in range(blocks):
        pairs = torch.cartesian_prod(torch.arange(len(local)), torch.arange(len(subsets)))
        at, subset = pairs.unbind(1)
        rows = Sequences(*(getattr(clean, f)[:1].expand(len(at), -1) for f in Sequences.__slots__))
        # A uniform of 2 is above every α: still masked. A uniform of 0 is below: revealed.
        states = hazard_states(rows, -1, schedule, (b + local[at]) / blocks, subsets[subset], block)
        alpha = schedule.alpha(local[at])
        hidden = (subsets[subset] > 0).sum(1)
        probability = alpha ** (length - hidden) * (1 - alpha) ** hidden
        share = states.row_weight * probability * weight[at] / 2 / blocks
        scored_rows = states.eligible.any(1)
        number = _set_number(states.tokens == -1)
        total.index_add_(0, number[scored_rows], share[scored_rows])
    return total


@claim("4a", "the hazard integral over t is the mask-count form: each S weighs 1/(k C(B,k)), for any α", 1e-9)
def hazard_form_is_mask_count_form() -> float:
    """Return the largest relative difference, for four schedules and blocks of 4, 2 and 1 [eq. 33]."""
    world, deviations = random_world(2, 4, seed=0), []
    clean = clean_rows(world)
    for schedule, block in itertools.product(SCHEDULES.values(), (None, 2, 1)):
        exact, _ = _patterns(world, block)
        integral = _hazard_integral(clean, schedule, block)
        deviations.append(float(((integral - exact).abs() / exact.clamp(min=1e-3)).max()))
    return max(deviations)


@claim("4b", "`mask_cells` gives each S of k positions of a block of B the probability 1/(L C(B,k))", 1e-12)
def mask_cells_enumerate_the_interpolant() -> float:
    """Return the largest error of the probabilities, over all cells and orderings.

    With blocks that do not divide L, and with prompts.
    """
    deviations = []
    for length, prompt, block in [(4, 0, None), (4, 0, 2), (4, 0, 1), (5, 0, 2), (5, 1, None), (5, 1, 3)]:
        world = random_world(2, length, seed=0, prompt=prompt)
        _, masked, eligible, count = every_mask(clean_rows(world).is_completion[:1], block)
        hazard, k = _patterns(world, block)
        number = _set_number(masked)
        if not (torch.equal(eligible.sum(1), count) and torch.equal(k[number], count)):
            return math.inf
        share = torch.full((len(masked),), 1 / len(masked), dtype=torch.float64)
        law = torch.zeros_like(hazard).index_add(0, number, share)
        deviations.append(float((law - k * hazard / (length - prompt)).abs().max()))
    return max(deviations)


@claim("4c", "`MaskCount` draws those masks, and weighs them by L/k (chi-square p)", 1e-3, "at least")
def mask_sampler_frequencies() -> float:
    """Return the p-value of the first row of many stratified batches; 0 for a wrong row weight."""
    p = []
    for block in (None, 2):
        world = random_world(2, 4, seed=0)
        clean = clean_rows(world, torch.zeros(3, dtype=torch.long))
        generator, counts = stream(0, "masks"), torch.zeros(2**4, dtype=torch.float64)
        hazard, k = _patterns(world, block)
        for _ in range(1500):
            states = MaskCount(block).states(clean, world.vocab, generator)
            number = _set_number(states.tokens == world.vocab)
            if not torch.allclose(states.row_weight, 4 / k[number]):
                return 0.0
            counts[number[0]] += 1
        p.append(chi_square(counts, k * hazard / 4))
    return min(p)
