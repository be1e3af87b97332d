"""Claims on rollouts: the decoders that sample the model's own law, and the laws of the others."""

from __future__ import annotations

import itertools

import scipy.stats
import torch
from jaxtyping import Float
from torch import Tensor

from dtm.engine import ORDERS, Decoder, MaxProbability, SampledConfidence, Uniform, generate
from dtm.random import derived_seed, stream
from dtm.verify.claims.check import claim
from dtm.verify.claims.population import by_state, fitted, random_control, worst
from dtm.verify.exact import World, decoder_law, number, random_world, total_variation

DRAWS = 20_000


def exact_decoders(length: int) -> list[Decoder]:
    """Return every decoder with ``is_exact``, over orders, blocks and tokens per step."""
    grid = itertools.product(ORDERS.values(), (None, *range(1, length)), (1, 2))
    decoders = [Decoder(order=order(), block=block, tokens_per_step=many) for order, block, many in grid]
    return [decoder for decoder in decoders if decoder.is_exact]


def sample(world: World, decoder: Decoder, draws: int, seed: int) -> Float[Tensor, " N"]:
    """Return how often `generate` draws each sequence from the exact posterior."""
    rows = torch.multinomial(world.prob, draws, True, generator=stream(seed, "rollouts"))
    given, length = world.sequences[rows][:, : world.prompt], world.length - world.prompt
    noise = derived_seed(seed, "rollouts")
    done = generate(world.denoiser().float(), given, length, decoder, seed=noise, batch=draws)
    return torch.bincount(number(done.tokens, world.vocab), minlength=len(world.prob)).double()


def chi_square(counts: Float[Tensor, " N"], law: Float[Tensor, " N"]) -> float:
    """Return the p-value of the counts under the law; cells with an expected count below 5 are pooled."""
    expected, order = (law / law.sum() * counts.sum()).sort()
    # Pool the rarest cells until the expected count is 5.
    pool = max(int((expected < 5).sum()), int((expected.cumsum(0) < 5).sum()) + 1)
    observed = counts[order]
    observed, expected = (
        torch.cat([cells[:pool].sum(0, keepdim=True), cells[pool:]]) for cells in (observed, expected)
    )
    return float(scipy.stats.chisquare(observed.numpy(), expected.numpy()).pvalue)


@claim("1b", "one token per step in uniform or max-probability order samples ρ_a exactly, any block", 1e-12)
def decoder_law_is_model_law() -> float:
    """Return the largest distance from ρ of the exact law of any decoder with ``is_exact``."""
    deviations = []
    for world in (random_world(4, 4, seed=1), random_world(3, 4, seed=2, prompt=1)):
        law, prompts = world.posterior(), world.log_prompt().exp()
        for decoder in exact_decoders(world.length - world.prompt):
            deviations.append(float((decoder_law(law, decoder, prompts) - world.prob).abs().max()))
    return max(deviations)


@claim("1c", "`generate` with the exact posterior draws from ρ (chi-square p)", 1e-3, "at least")
def sampler_draws_from_model_law() -> float:
    """Return the smallest p-value over uniform and max-probability order, one block and blocks of 2."""
    worlds = (random_world(3, 4, seed=3), random_world(3, 4, seed=4, prompt=1))
    orders = (Uniform(), MaxProbability())
    decoders = [Decoder(order=order, block=block) for order in orders for block in (None, 2)]
    return min(
        chi_square(sample(world, decoder, DRAWS, seed), world.prob)
        for seed, (world, decoder) in enumerate(itertools.product(worlds, decoders))
    )


@claim("12a", "rollouts of another law q: the minimiser is π_{q,h} + c (π_a − q(·|x_t)) / E_q[w|x_t]", 1e-12)
def mismatch_formula() -> float:
    """Return the largest error of the formula for the minimiser, with sampled-confidence rollouts."""
    world, h, deviations = random_world(3, 3, seed=5), 1.5, []
    teacher = world.posterior()
    for block in (None, 2):
        q = decoder_law(teacher, Decoder(order=SampledConfidence(), block=block))
        rollouts = World(3, 3, q.log(), world.reward)
        weight = rollouts.given_state((h * world.reward - rollouts.log_z(h)).exp())
        for control in (torch.zeros_like(weight), weight, random_control(world, 0)):
            shift = (control / weight)[:, None, None] * (teacher - rollouts.posterior())
            formula = rollouts.tilted(h).posterior() + shift
            fit = fitted(rollouts, h, by_state(world, control), block, teacher=teacher)
            deviations.append(worst(fit, formula, rollouts, block))
    return max(deviations)


@claim(
    "12b", "sampled-confidence order does not sample ρ: total variation of its exact law", 0.05, "at least"
)
def sampled_confidence_is_biased() -> float:
    """Return the smallest distance from ρ over random worlds, also with independent tokens."""
    worlds = [random_world(4, 4, seed=seed) for seed in range(3)]
    marginal = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log()
    independent = (marginal[:, None, None] + marginal[:, None] + marginal).flatten()
    worlds.append(World(3, 3, independent, torch.zeros_like(independent)))
    decoder = Decoder(order=SampledConfidence())
    laws = [decoder_law(world.posterior(), decoder) for world in worlds]
    return min(float(total_variation(law, w.prob)) for law, w in zip(laws, worlds, strict=True))


@claim(
    "12c",
    "`generate` in sampled-confidence order is far from ρ: total variation of 20,000 draws",
    0.05,
    "at least",
)
def sampled_confidence_sampler_is_biased() -> float:
    """Return the total variation between draws of `generate` and ρ."""
    world = random_world(3, 4, seed=3)
    counts = sample(world, Decoder(order=SampledConfidence()), DRAWS, seed=0)
    return float(total_variation(counts / DRAWS, world.prob))


@claim(
    "12d",
    "`generate` follows its exact law for every decoder, biased ones too (chi-square p)",
    1e-3,
    "at least",
)
def sampler_follows_decoder_law() -> float:
    """Return the smallest p-value over orders, blocks, tokens per step, temperatures and certainty."""
    decoders = [
        Decoder(order=SampledConfidence()),
        Decoder(order=SampledConfidence(), block=3, tokens_per_step=2),
        Decoder(order=Uniform(), tokens_per_step=3),
        Decoder(order=MaxProbability(), tokens_per_step=2, temperature=0.5),
        Decoder(order=SampledConfidence(), temperature=1.5),
        Decoder(order=Uniform(), certainty=0.6),
        Decoder(order=MaxProbability(), block=2, certainty=0.7),
    ]
    world = random_world(3, 4, seed=6)
    table, p = world.posterior(), []
    for seed, decoder in enumerate(decoders):
        p.append(chi_square(sample(world, decoder, DRAWS, seed), decoder_law(table, decoder)))
    return min(p)
