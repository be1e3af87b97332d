r"""The law of x_t, divergences between paths, and the population c-DTM loss, all by enumeration.

In mask-count form the interpolant scores the masked positions S of the first block that has any, with
weight 1 / (k C(B, k)), k = |S|: the total hazard that the subset S receives (docs/method.md, section 2).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dtm.verify.exact.world import World, number


@dataclass(frozen=True, slots=True)
class Scored:
    """The scored positions of every state."""

    eligible: Bool[Tensor, "S L"]
    """S: the masked positions of the active block; empty for states outside the interpolant."""
    hazard: Float[Tensor, " S"]
    """1 / (k C(B, k)), and 0 for states outside the interpolant."""


def _blocks(world: World, block: int | None) -> list[list[int]]:
    """Return completion positions block by block; the last block may be shorter."""
    size = block or world.length - world.prompt
    starts = range(world.prompt, world.length, size)
    return [list(range(start, min(start + size, world.length))) for start in starts]


def scored(world: World, block: int | None) -> Scored:
    """Return the scored positions and the hazard of every state."""
    masked = world.states == world.vocab
    eligible, hazard = torch.zeros_like(masked), torch.zeros(len(masked), dtype=torch.float64)
    for positions in _blocks(world, block):
        first, last = positions[0], positions[-1]
        visited = ~masked[:, :first].any(1) & masked[:, last + 1 :].all(1) & masked[:, positions].any(1)
        eligible[:, positions] |= masked[:, positions] & visited[:, None]
        for k in range(1, len(positions) + 1):
            here = visited & (masked[:, positions].sum(1) == k)
            hazard[here] = 1 / (k * math.comb(len(positions), k))
    return Scored(eligible, hazard)


def score_mass(world: World, block: int | None) -> Float[Tensor, "S L"]:
    r"""Return ∫ λ(t) P[x_t = s, i ∈ S] dt: the weight of position i of state s in the objective."""
    law = scored(world, block)
    return law.eligible * (law.hazard * world.state_mass())[:, None]


# ── divergences ──────────────────────────────────────────────────────────────────────────────────


def kl(log_p: Float[Tensor, " N"], log_q: Float[Tensor, " N"]) -> float:
    """KL(p ‖ q), in nats."""
    return float((log_p.exp() * (log_p - log_q)).sum())


def total_variation(p: Float[Tensor, "*B V"], q: Float[Tensor, "*B V"]) -> Float[Tensor, "*B"]:
    """Half the L1 distance."""
    return (p - q).abs().sum(-1) / 2


def ordered_log_laws(world: World, table: Float[Tensor, "S L V"], block: int | None) -> Float[Tensor, "O N"]:
    r"""Return log ∏_j π_θ(x^{σ_j} | x^{σ_{<j}}) of every completion, for each equally likely order σ.

    The jump chain of the reverse process: blocks left to right, uniform order within each.
    """
    within = [list(itertools.permutations(positions)) for positions in _blocks(world, block)]
    orders = [list(itertools.chain(*parts)) for parts in itertools.product(*within)]
    sequences, log_table, laws = world.sequences, table.log(), []
    for order in orders:
        x_t, law = sequences.clone(), torch.zeros(len(sequences), dtype=torch.float64)
        for i in reversed(order):
            x_t[:, i] = world.vocab
            law += log_table[number(x_t, world.vocab + 1), i, sequences[:, i]]
        laws.append(law)
    return torch.stack(laws)


def path_kl(world: World, table: Float[Tensor, "S L V"], block: int | None) -> float:
    r"""KL(path of ``world`` ‖ path of π_θ) = E_σ KL(ρ ‖ ρ_θ^σ), by the chain rule along every order."""
    laws = ordered_log_laws(world, table, block)
    return float((world.prob * (world.log_prob_given_prompt() - laws.mean(0))).sum())


def local_kl(world: World, table: Float[Tensor, "S L V"], block: int | None) -> float:
    r"""∫ λ E[Σ_{i∈S} KL(π ‖ π_θ)] dt: the same divergence by the paper's lemma on masked rates."""
    posterior = world.posterior()
    divergence = torch.special.xlogy(posterior, posterior) - torch.special.xlogy(posterior, table)
    mass = score_mass(world, block)
    return float((mass * torch.where(mass > 0, divergence.sum(-1), 0.0)).sum())


# ── the population c-DTM loss ────────────────────────────────────────────────────────────────────


def _targets(
    rollouts: World, teacher: Float[Tensor, "S L V"], h: float, control: Float[Tensor, " S"]
) -> Float[Tensor, "S L V"]:
    r"""E[w T_c | x_t] = c π_a + E[w e | x_t] − c E[e | x_t]."""
    weight = (h * rollouts.reward).exp()
    e = torch.nn.functional.one_hot(rollouts.sequences, rollouts.vocab).double()
    tilt = rollouts.given_state(weight[:, None, None] * e)
    return tilt + control[:, None, None] * (teacher - rollouts.posterior())


def population_loss(
    world: World, table: Float[Tensor, "S L V"], h: float, control: Float[Tensor, " S"], block: int | None
) -> float:
    r"""∫ λ E_a[Σ_{i∈S} e^{hr} CE(T_c ‖ π_θ)] dt  [eqs. 16, 34], for any c(x_t); teacher π_a is exact."""
    target = _targets(world, world.posterior(), h, control)
    mass = score_mass(world, block)
    cross_entropy = -(target * table.clamp(min=1e-300).log()).sum(-1)
    return float((mass * torch.where(mass > 0, cross_entropy, 0.0)).sum())


def minimiser(
    rollouts: World, teacher: Float[Tensor, "S L V"], h: float, control: Float[Tensor, " S"]
) -> Float[Tensor, "S L V"]:
    r"""argmin of the population loss: E_q[w T_c | x_t] / E_q[w | x_t], rollouts drawn from any law q.

    π_{a+h} when q = ρ_a and the teacher is its posterior; otherwise the biased
    limit of docs/method.md, section 7.
    """
    weight = (h * rollouts.reward).exp()
    return _targets(rollouts, teacher, h, control) / rollouts.given_state(weight)[:, None, None]
