"""Claims on steering: SMC draws from the tilted law of its decoder, best-of-n from the law in `best_of`.

Independent repetitions are empty prompts of one call, which runs thousands of them.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dtm.engine import Decoder, SampledConfidence, generate
from dtm.engine.generation import masked_rows
from dtm.models.denoiser import Denoiser
from dtm.records import Completions
from dtm.steering import SMC, BestOf, Steered, Steering, steer
from dtm.steering.best_of import best_of_law, kl_bound
from dtm.steering.particles import Path
from dtm.steering.sampler import Judge, Sampler
from dtm.steering.smc import Sweep
from dtm.steering.steer import drawn_rows
from dtm.steering.values import Unfinished, Values
from dtm.verify.claims.check import claim
from dtm.verify.claims.decoding import chi_square
from dtm.verify.exact import World, decoder_law, kl, number, random_world

A = 4.0
BLOCKS = Decoder(block=2)
TOGETHER = 2**20
"""Rows per batch: all rows."""


def world_of(seed: int) -> World:
    """Return a world of sixteen sequences, few enough to estimate a law from thousands of draws."""
    return random_world(2, 4, seed=seed)


def judge(world: World) -> Judge:
    """Return the judge with the world's reward."""
    return lambda rows, prompts: world.reward[number(rows.tokens, world.vocab)].tolist()


def repeated(
    world: World,
    method: Steering,
    repeats: int,
    seed: int,
    decoder: Decoder = BLOCKS,
    model: Denoiser | None = None,
    target: Denoiser | None = None,
) -> Steered:
    """Steer ``repeats`` empty prompts."""
    empty = torch.zeros(repeats, 0, dtype=torch.long)
    return steer(
        model or world.denoiser(),
        empty,
        world.length,
        method,
        judge(world),
        decoder,
        seed=seed,
        batch=TOGETHER,
        target=target,
    )


def counts(world: World, rows: Completions) -> Float[Tensor, " N"]:
    """Count the occurrences of each sequence."""
    return torch.bincount(number(rows.tokens, world.vocab), minlength=len(world.prob)).double()


def answers(world: World, found: Steered) -> Float[Tensor, " N"]:
    """Count how often each sequence is the answer."""
    return counts(world, found.rows.select(found.answer))


def written(unfinished: Unfinished) -> Int[Tensor, "R L"]:
    """Return the tokens of the rows, with masks at positions that are not decoded."""
    return unfinished.canvas.tokens[list(unfinished.rows)]


def wrong_values(sampler: Sampler, unfinished: Unfinished, tilt: float, seed: int) -> Float[Tensor, " R"]:
    """Return values that do not depend on the reward."""
    return torch.sin(1.0 + number(written(unfinished), sampler.model.vocab_size).double())


def exact_values(world: World) -> Values:
    """Return the exact values V(x_s) = E[e^{ar} | x_s]."""
    log_value = world.given_state((A * world.reward).exp()).log()

    def values(sampler: Sampler, unfinished: Unfinished, tilt: float, seed: int) -> Float[Tensor, " R"]:
        return log_value[number(written(unfinished), world.vocab + 1)]

    return values


@claim("S1", "Ẑ of SMC is unbiased at N = 2 with wrong values: distance from Z in standard errors", 3.5)
def smc_estimates_z_without_bias() -> float:
    """Return the largest distance of the mean Ẑ from Z in standard errors, for both kinds of resampling.

    After every block; Z is that of the decoder's law, also for biased decoders.
    """
    deviations = []
    for resampling, decoder in (
        ("systematic", BLOCKS),
        ("multinomial", Decoder(block=2, order=SampledConfidence(), tokens_per_step=2)),
    ):
        world = world_of(1)
        method = SMC(n=2, tilt=A, values=wrong_values, threshold=1.0, resampling=resampling)
        found = repeated(world, method, 4_000, 3, decoder).log_z.exp()
        z = (decoder_law(world.posterior(), decoder) * (A * world.reward).exp()).sum()
        deviations.append(float((found.mean() - z).abs() / found.std() * math.sqrt(len(found))))
    return max(deviations)


@claim("S2", "SMC's weighted law tends to ρ_dec e^{ar} like 1/N: slope of log distance in log N", -0.8)
def smc_tends_to_the_tilted_law() -> float:
    """Return the slope of log distance in log N, from 2 to 16 particles, for several values."""
    world = world_of(2)
    slopes = []
    for values in (exact_values(world), wrong_values, "one-shot"):
        distance = []
        for n in (2, 16):
            found = repeated(world, SMC(n=n, tilt=A, values=values, threshold=0.8), 12_800 // n, n)
            distance.append(distance_of_means(world, found))
        slopes.append(math.log(distance[1] / distance[0]) / math.log(8))
    return max(slopes)


def distance_of_means(world: World, found: Steered) -> float:
    """Return the L2 distance of the mean weighted law from the tilted law, without the noise of the mean.

    It is estimated by the product of the deviations of two independent halves, whose noise has mean 0.
    """
    sequence, deviations = number(found.rows.tokens, world.vocab).view(found.weight.shape), []
    for weight, which in zip(found.weight.chunk(2), sequence.chunk(2), strict=True):
        law = torch.zeros_like(world.prob).index_add(0, which.flatten(), weight.flatten())
        deviations.append(law / law.sum() - world.tilted(A).prob)
    return float((deviations[0] * deviations[1]).sum().clamp(min=1e-12).sqrt())


@claim("S3", "exact values and the exact tilted model as proposal: all weights are equal, Ẑ is Z", 1e-6)
def exact_twist_has_no_variance() -> float:
    """Return the largest relative deviation of Ẑ from Z, and of the particles' weights from each other."""
    world = world_of(3)
    method = SMC(n=3, tilt=A, values=exact_values(world))
    found = repeated(world, method, 200, 0, model=world.tilted(A).denoiser(), target=world.denoiser())
    z = math.exp(world.log_z(A))
    return max(float((found.log_z.exp() / z - 1).abs().max()), float((3 * found.weight - 1).abs().max()))


@claim("S4", "a sweep of conditional SMC keeps the law ρ_dec e^{ar}, N = 2 (chi-square p)", 1e-3, "at least")
def conditional_smc_is_invariant() -> float:
    """Return the p-value of paths of the exact law after a sweep that resamples at every block."""
    world, repeats = world_of(4), 16_000
    empty = torch.zeros(repeats, 0, dtype=torch.long)
    model, tilted = world.denoiser(), world.tilted(A)
    start = generate(tilted.denoiser(), empty, world.length, BLOCKS, seed=1, batch=TOGETHER)
    sampler = Sampler(model, BLOCKS, judge(world), TOGETHER)
    held = Path(start, torch.full((repeats,), world.length // 2 - 1))
    swept = Sweep(A, wrong_values, threshold=1.0).run(
        sampler, masked_rows(empty, world.length, 2, model), 2, 2, held
    )
    return chi_square(counts(world, swept.rows.select(drawn_rows(swept, 3).tolist())), tilted.prob)


@claim("S5", "best-of-n follows its law, and soft best-of-2 its own (chi-square p)", 1e-3, "at least")
def best_of_n_follows_its_law() -> float:
    """Return the smallest p-value, for dense and 0/1 rewards.

    The law of soft best-of-2 is ρ(x) Σ_y ρ(y) 2 w(x) / (w(x) + w(y)).
    """
    found = []
    for reward in ("dense", "binary"):
        world = random_world(2, 4, seed=5, reward=reward)
        law = best_of_law(world.prob, world.reward, 3)
        found.append(chi_square(answers(world, repeated(world, BestOf(n=3), 2_000, 0)), law))
    weight = (A * world.reward).exp()
    soft = world.prob * (2 * weight[:, None] / (weight[:, None] + weight) * world.prob).sum(1)
    found.append(chi_square(answers(world, repeated(world, BestOf(n=2, tilt=A), 3_000, 1)), soft))
    return min(found)


@claim("S6", "KL(best-of-n ‖ ρ) ≤ log n − (n − 1)/n: the least room below the bound", 0.0, "at least")
def best_of_n_stays_near_the_model() -> float:
    """Return the smallest difference of the bound and the KL, over random worlds, dense and 0/1 rewards."""
    room = []
    for reward in ("dense", "binary", "maze"):
        world = random_world(3, 4, seed=6, reward=reward)
        for n in (2, 16, 256):
            law = best_of_law(world.prob, world.reward, n)
            room.append(kl_bound(n) - kl(law.clamp(min=1e-300).log(), world.log_prob))
    return min(room)
