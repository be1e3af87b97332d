r"""Weights of particles: their effective number, and ancestors drawn in proportion to them.

Pure functions of log-weights of shape [P, N]: N particles for each of P prompts.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dtm.engine.noise import candidate_keys, row_keys, uniform
from dtm.random import derived_seed


def uniforms(
    seed: int, purpose: str, prompts: int, block: int, width: int, device: torch.device
) -> Float[Tensor, "P K"]:
    """Return ``width`` numbers between 0 and 1 per prompt: a hash of seed, purpose, prompt and block."""
    prompt = torch.arange(prompts, device=device)
    keys = row_keys(derived_seed(seed, purpose), prompt, torch.full_like(prompt, block))
    return uniform(candidate_keys(keys, torch.zeros_like(prompt), width))


def log_mean(log_weight: Float[Tensor, "P N"]) -> Float[Tensor, " P"]:
    r"""log (1/N) Σ_i w_i of each prompt."""
    return log_weight.logsumexp(1) - math.log(log_weight.shape[1])


def effective_share(log_weight: Float[Tensor, "P N"]) -> Float[Tensor, " P"]:
    r"""ESS / N = (Σ w)² / (N Σ w²) of each prompt."""
    double = 2 * log_weight.logsumexp(1) - (2 * log_weight).logsumexp(1)
    return double.exp() / log_weight.shape[1]


def systematic(log_weight: Float[Tensor, "P N"], u: Float[Tensor, "P 1"]) -> Int[Tensor, "P N"]:
    """Draw N ancestors at the levels (u + i) / N of the cumulative weights: E[copies of i] = N w̄_i.

    >>> systematic(torch.tensor([[0.5, 0.25, 0.25]]).log(), torch.tensor([[0.5]])).tolist()
    [[0, 0, 2]]
    """
    count = log_weight.shape[1]
    return at_levels(log_weight, (u + torch.arange(count, device=u.device)) / count)


def multinomial(log_weight: Float[Tensor, "P N"], u: Float[Tensor, "P K"]) -> Int[Tensor, "P K"]:
    """Draw K independent ancestors, each i with probability w̄_i."""
    return at_levels(log_weight, u)


def at_levels(log_weight: Float[Tensor, "P N"], level: Float[Tensor, "P K"]) -> Int[Tensor, "P K"]:
    """Return the particle at each level in (0, 1) of the cumulative normalised weights.

    It never has weight 0: levels above the last rounded sum map to the last particle with a weight.
    """
    weight = log_weight.double().softmax(1)
    place = torch.searchsorted(weight.cumsum(1), level.double(), right=True)
    number = torch.arange(weight.shape[1], device=weight.device)
    last = torch.where(weight > 0, number, 0).amax(1, keepdim=True)
    return torch.minimum(place, last)
