"""Claims on the KL bound and on the progress meter built from it."""

from __future__ import annotations

import itertools

import torch

from dtm import tilts
from dtm.engine import Decoder
from dtm.methods import CONTROL_VARIATES, mdm_loss
from dtm.verify.claims.check import claim
from dtm.verify.claims.population import Table, perturbed, population, tilt_outcome
from dtm.verify.exact import World, decoder_law, denoiser, kl, path_kl, random_world

H = 1.5


def _students(world: World, h: float) -> list[Table]:
    """The teacher, a noisy target, and half target and half noise."""
    target = world.tilted(h).posterior()
    noisy = perturbed(world.posterior(), 1, scale=1.0)
    return [world.posterior(), perturbed(target, 0), (target + noisy) / 2]


def _excess(world: World, student: Table, block: int | None) -> float:
    """(L_c(θ) − L_c(θ*)) / Z from the production loss, c = 1."""
    best = world.tilted(H).posterior()
    one = CONTROL_VARIATES["one"]
    return tilt_outcome(world, student, H, one, block).loss - tilt_outcome(world, best, H, one, block).loss


@claim("5a", "Proposition 3.4: the excess c-DTM loss over Z is KL(path_{a+h} ‖ path_θ), relative", 1e-10)
def excess_loss_is_path_kl() -> float:
    """Path KL by the chain rule along every order. Several prompts weigh as P(p) Z_p / Z."""
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
    """ρ_θ is the exact law of the uniform-order decoder."""
    gaps = []
    for seed, block in itertools.product(range(3), (None, 2, 1)):
        world = random_world(3, 4, seed=seed)
        for student in _students(world, H):
            law = decoder_law(student, Decoder(block=block)).log()
            gaps.append(kl(world.tilted(H).log_prob, law) - _excess(world, student, block))
    return max(gaps)


@claim("5c", "at B = 1 (autoregressive) the bound is an equality, relative", 1e-10)
def bound_is_tight_for_single_tokens() -> float:
    """Terminal KL over excess loss, less 1."""
    deviations = []
    for seed in range(3):
        world = random_world(3, 4, seed=seed)
        for student in _students(world, H):
            terminal = kl(world.tilted(H).log_prob, decoder_law(student, Decoder(block=1)).log())
            deviations.append(abs(terminal / _excess(world, student, 1) - 1))
    return max(deviations)


@claim("6a", "available − gained = KL(path_{a+h} ‖ path_θ), with available = h E_{a+h}[r] − log Z", 1e-10)
def available_less_gained_remains() -> float:
    """`gained` is the objective's own metric; it must not depend on the control variate in use."""
    world, deviations = random_world(4, 4, seed=2), []
    tilted = world.tilted(H)
    available = H * float((tilted.prob * world.reward).sum()) - world.log_z(H)
    for block, name in itertools.product((None, 2), ("zero", "mean")):
        for student in _students(world, H):
            outcome = tilt_outcome(world, student, H, CONTROL_VARIATES[name], block)
            remaining = available - outcome.metrics["gained"]
            deviations.append(abs(remaining - path_kl(tilted, student, block)))
    return max(deviations)


def _available_limit(world: World, copies: int, h: float) -> float:
    """`available_kl` of a buffer that is the law itself, taken to infinitely many copies.

    The jackknife's correction is a power series in 1/copies; Richardson's table removes it.
    """
    rows = (world.prob * copies).round().long()
    index = torch.arange(len(rows)).repeat_interleave(rows)
    group = index // (len(rows) // world.vocab**world.prompt)
    row = []
    for level in range(6):
        many = index.repeat(2**level)
        row.append(tilts.available_kl(world.reward[many], group.repeat(2**level), h))
    for order in range(1, len(row)):
        row = [(2**order * row[j + 1] - row[j]) / (2**order - 1) for j in range(len(row) - 1)]
    return row[0]


@claim(
    "6b", "`available_kl` is Σ_p P(p) (Z_p/Z) KL(ρ_{a+h,p} ‖ ρ_{a,p}), for one prompt and for several", 1e-10
)
def available_kl_of_the_law() -> float:
    """A buffer with every sequence in exact proportion."""
    deviations = []
    for prompt in (0, 1):
        world = random_world(3, 3, seed=3, prompt=prompt, copies=600)
        joint = world.jointly_tilted(H)
        exact = float((joint.prob * (joint.log_prob_given_prompt() - world.log_prob_given_prompt())).sum())
        deviations.append(abs(_available_limit(world, 600, H) - exact))
    return max(deviations)


@claim("6c", "h E_{a+h}[r] − log Z of the joint law overcounts it by the KL of the prompt marginal", 1e-10)
def joint_formula_counts_the_prompts() -> float:
    """The tilt of P(p) to P(p) Z_p / Z is nothing that a conditional model can absorb."""
    world = random_world(3, 3, seed=4, prompt=1, copies=600)
    joint = world.jointly_tilted(H)
    formula = H * float((joint.prob * world.reward).sum()) - world.log_z(H)
    overcount = kl(joint.log_prompt(), world.log_prompt())
    return abs(formula - _available_limit(world, 600, H) - overcount)


@claim("6d", "its jackknife removes most of the small-group bias: bias left over plug-in bias, K = 3", 0.25)
def jackknife_reduces_bias() -> float:
    """A buffer of all groups of three equally likely completions is the exact expectation over groups."""
    reward = torch.linspace(0, 1, 8, dtype=torch.float64)
    triples = torch.cartesian_prod(*[torch.arange(8)] * 3)
    group = torch.arange(len(triples)).repeat_interleave(3)
    jackknife = tilts.available_kl(reward[triples.flatten()], group, 3.0)
    weight = (3 * reward).exp()
    weight = weight / weight.mean()
    exact = float(torch.special.xlogy(weight, weight).mean())
    mean = weight[triples].mean(1)
    plug_in = exact - float(torch.special.xlogy(mean, mean).mean())
    return abs(jackknife - exact) / abs(plug_in - exact)


@claim("Eq. 6", "the MDM loss less the entropy of ρ is KL(path ‖ path_θ), relative", 1e-10)
def mdm_loss_is_path_kl() -> float:
    """`mdm_loss` in the population, which therefore bounds the cross-entropy."""
    deviations = []
    for block in (None, 2):
        world = random_world(3, 4, seed=5)
        student = perturbed(world.posterior(), 0)
        loss = mdm_loss(denoiser(student), population(world, block).states).item()
        deviations.append(abs((loss - world.entropy()) / path_kl(world, student, block) - 1))
    return max(deviations)


@claim("6e", "at the tilted posterior nothing remains: absorbed = gained / available = 1", 1e-10)
def absorbed_reaches_one() -> float:
    """The meter's upper end."""
    world = random_world(3, 4, seed=6, reward="maze")
    target = world.tilted(H).posterior()
    gained = tilt_outcome(world, target, H, CONTROL_VARIATES["mean"], None).metrics["gained"]
    available = H * float((world.tilted(H).prob * world.reward).sum()) - world.log_z(H)
    return abs(gained / available - 1)
