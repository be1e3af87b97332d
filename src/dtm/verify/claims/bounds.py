"""Claims on the KL bound and on the absorbed share."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from dtm import tilts
from dtm.engine import Decoder
from dtm.methods import CONTROL_VARIATES, mdm_loss
from dtm.random import stream
from dtm.verify.claims.check import claim
from dtm.verify.claims.population import Table, perturbed, population, tilt_outcome
from dtm.verify.exact import World, decoder_law, denoiser, kl, ordered_log_laws, path_kl, random_world

H = 1.5


def _students(world: World, h: float) -> list[Table]:
    """Return students: the teacher, a noisy target, and a mixture of target and noise."""
    target = world.tilted(h).posterior()
    noisy = perturbed(world.posterior(), 1, scale=1.0)
    return [world.posterior(), perturbed(target, 0), (target + noisy) / 2]


def _excess(world: World, student: Table, block: int | None) -> float:
    """Return the excess (L_c(θ) − L_c(θ*)) / Z of the production loss, c = 1."""
    best = world.tilted(H).posterior()
    one = CONTROL_VARIATES["one"]
    return tilt_outcome(world, student, H, one, block).loss - tilt_outcome(world, best, H, one, block).loss


@claim("5a", "Proposition 3.4: the excess c-DTM loss over Z is KL(path_{a+h} ‖ path_θ), relative", 1e-10)
def excess_loss_is_path_kl() -> float:
    """Return the relative difference of the excess loss and the path KL.

    Path KL by the chain rule along every order; several prompts have the weights P(p) Z_p / Z.
    """
    deviations = []
    for world, block in itertools.product(
        (random_world(4, 4, seed=0), random_world(3, 4, seed=1, prompt=1)), (None, 2, 1)
    ):
        for student in _students(world, H):
            exact = path_kl(world.jointly_tilted(H), student, block)
            deviations.append(abs(_excess(world, student, block) / exact - 1))
    return max(deviations)


@claim("5b", "Proposition 3.4: KL(ρ_{a+h} ‖ ρ_θ) never exceeds the excess loss over Z (largest gap)", 1e-12)
def excess_loss_bounds_terminal_kl() -> float:
    """Return the largest amount by which KL(ρ_{a+h} ‖ ρ_θ), in uniform order, exceeds the excess loss."""
    gaps = []
    for seed, block in itertools.product(range(3), (None, 2, 1)):
        world = random_world(3, 4, seed=seed)
        for student in _students(world, H):
            law = decoder_law(student, Decoder(block=block)).log()
            gaps.append(kl(world.tilted(H).log_prob, law) - _excess(world, student, block))
    return max(gaps)


@claim("5c", "at B = 1 (autoregressive) the bound is an equality, relative", 1e-10)
def bound_is_tight_for_single_tokens() -> float:
    """Return the largest relative difference of terminal KL and excess loss at B = 1."""
    deviations = []
    for seed in range(3):
        world = random_world(3, 4, seed=seed)
        for student in _students(world, H):
            terminal = kl(world.tilted(H).log_prob, decoder_law(student, Decoder(block=1)).log())
            deviations.append(abs(terminal / _excess(world, student, 1) - 1))
    return max(deviations)


@claim("6a", "available − gained = KL(path_{a+h} ‖ path_θ), with available = h E_{a+h}[r] − log Z", 1e-10)
def available_less_gained_remains() -> float:
    """Return the largest error of available − gained, with the metric `gained` under several c."""
    world, deviations = random_world(4, 4, seed=2), []
    tilted = world.tilted(H)
    available = H * float((tilted.prob * world.reward).sum()) - world.log_z(H)
    for block, name in itertools.product((None, 2), ("zero", "mean")):
        for student in _students(world, H):
            outcome = tilt_outcome(world, student, H, CONTROL_VARIATES[name], block)
            remaining = available - outcome.metrics["gained"]
            deviations.append(abs(remaining - path_kl(tilted, student, block)))
    return max(deviations)


def _ratios(world: World, student: Table, block: int | None) -> Tensor:
    """Return ℓ of every sequence along each order: the sum over steps of log π_θ/π_a at revealed tokens."""
    laws = ordered_log_laws(world, student, block), ordered_log_laws(world, world.posterior(), block)
    return laws[0] - laws[1]


def _read(world: World, log_ratio: Tensor, drawn: Tensor) -> tuple[float, float]:
    """Return the absorbed share on some rollouts, given as numbers of sequences."""
    group = drawn // world.vocab ** (world.length - world.prompt)
    return tilts.absorbed_share(log_ratio[drawn], world.reward[drawn], group, H)


@claim(
    "6b",
    "a student that has tilted by s h reads absorbed = s on any rollouts, in any order of decoding",
    1e-9,
)
def the_meter_reads_the_tilt() -> float:
    """Return the largest error of the absorbed share, for students tilted by several s.

    On forty rollouts of three prompts; untrained, half way, perfect, too far, and away from the reward.
    """
    deviations = []
    for seed, block, s in itertools.product(range(2), (None, 2), (0.0, 0.5, 1.0, 1.5, -0.5)):
        world = random_world(3, 4, seed=seed, reward="maze", prompt=1, rate=0.5)
        drawn = torch.multinomial(world.prob, 40, True, generator=stream(seed, "rollouts"))
        for log_ratio in _ratios(world, world.tilted(s * H).posterior(), block):
            share, error = _read(world, log_ratio, drawn)
            deviations.append(max(abs(share - s), error))
    return max(deviations)


@claim(
    "6c", "absorbed is (E_{a+h}[ℓ] − E_a[ℓ]) over the symmetric KL of ρ_{a+h} and ρ_a, for any student", 1e-9
)
def the_meter_contrasts_the_laws() -> float:
    """Return the largest error of the formula, with rollouts in the exact proportions of the law."""
    world, deviations = random_world(3, 3, seed=6, copies=600), []
    tilted = world.tilted(H)
    drawn = torch.arange(len(world.prob)).repeat_interleave((world.prob * 600).round().long())
    distance = kl(tilted.log_prob, world.log_prob) + kl(world.log_prob, tilted.log_prob)
    for student in _students(world, H):
        for log_ratio in _ratios(world, student, None):
            exact = float(((tilted.prob - world.prob) * log_ratio).sum()) / distance
            deviations.append(abs(_read(world, log_ratio, drawn)[0] - exact))
    return max(deviations)


@claim("Eq. 6", "the MDM loss less the entropy of ρ is KL(path ‖ path_θ), relative", 1e-10)
def mdm_loss_is_path_kl() -> float:
    """Return the relative error of the identity for the population `mdm_loss`, which bounds cross-entropy."""
    deviations = []
    for block in (None, 2):
        world = random_world(3, 4, seed=5)
        student = perturbed(world.posterior(), 0)
        loss = mdm_loss(denoiser(student), population(world, block).states).item()
        deviations.append(abs((loss - world.entropy()) / path_kl(world, student, block) - 1))
    return max(deviations)
