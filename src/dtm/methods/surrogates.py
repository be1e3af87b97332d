r"""Estimates of log ρ_θ(x), which masked diffusion models cannot compute exactly, for policy gradients.

For a uniformly random order σ let p_i(σ) = π_θ(x_i | the tokens before i in σ). Then

    log ρ_θ(x) = log E_σ ∏_i p_i            the law of decoding in random order
    ELBO       = Σ_i E_σ log p_i            ≤ log ρ_θ, always (Jensen)
    EUBO       = (1/β) Σ_i log E_σ p_i^β    ≥ ELBO; ≥ log ρ_θ if π_θ is the posterior of some law, or if β ≥ n

and E_σ f(p_i) = E_{k, S} (n/k) 1{i ∈ S} f(π_θ(x_i | x_t)): the weight n/k turns the law of states in which i
is masked into that of states just before i is revealed. Claims B1 to B4 of `dtm verify`; docs/decisions.md
has the error at β below n, as used in practice.

Letters: S sequences, M masks of each, L positions. Scores are 0 where nothing is scored.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dtm.records import MaskedStates


def token_scores(log_pi: Float[Tensor, "N V"], states: MaskedStates) -> Float[Tensor, "S M L"]:
    """log π(x_k | x_t) at each scored position, in place; 0 elsewhere."""
    hit = log_pi.gather(-1, states.x1[:, None]).squeeze(-1)
    flat = torch.zeros(states.tokens.numel(), dtype=hit.dtype, device=hit.device)
    width = states.tokens.shape[1]
    return flat.index_copy(0, states.scored, hit).view(states.sequences, states.draws, width)


def by_sequence(values: Tensor, states: MaskedStates) -> Tensor:
    """Reshape values of rows to sequences × draws."""
    return values.view(states.sequences, states.draws, *values.shape[1:])


def elbo(score: Float[Tensor, "S M L"], weight: Float[Tensor, "S M"]) -> Float[Tensor, " S"]:
    r"""(1/M) Σ_τ w_τ Σ_{k∈S_τ} log π(x_k | x_τ).

    Over `UniformCount` and `Coupled` the evidence bound without bias; over `FullMask` the one-step sum of d1
    and wd1; over `Quadrature` GDPO's rule; over `TraceSegments` and `SampledSteps` the likelihood of the
    decoder's own steps; over `LeftToRight` that of decoding from left to right.
    """
    return (weight.to(score.dtype) * score.sum(-1)).mean(-1)


def bounds(log_pi: Float[Tensor, "N V"], states: MaskedStates) -> Float[Tensor, " S"]:
    """Return the `elbo` of every sequence, from log π at the scored positions and the masks' weights."""
    return elbo(token_scores(log_pi, states), by_sequence(states.row_weight, states))


def pair_bounds(log_pi: Float[Tensor, "N V"], states: MaskedStates) -> Float[Tensor, "S J"]:
    """Return the estimate of each pair of coupled masks (`Coupled`): the mean of its two rows."""
    rows = by_sequence(states.row_weight, states) * token_scores(log_pi, states).sum(-1)
    return rows.view(states.sequences, -1, 2).mean(-1)


def eubo(
    score: Float[Tensor, "S M L"],
    scored: Bool[Tensor, "S M L"],
    weight: Float[Tensor, "S M"],
    length: Int[Tensor, " S"],
    beta: float,
) -> Float[Tensor, " S"]:
    r"""(n/|U|) (1/β) Σ_{k∈U} log (1/M) Σ_τ 1{k ∈ S_τ} w_τ π(x_k | x_τ)^β, U = ∪ S_τ, all in log space.

    At a position that is masked in only one draw, the gradient is that of log π for any β.
    """
    exponent = beta * score + weight.to(score.dtype).log()[..., None]
    # A position outside U is left out below; a finite filler keeps its gradient 0 and not nan.
    seen = scored.any(1)
    filler = torch.where(seen[:, None], -torch.inf, 0.0).to(score.dtype)
    mean = torch.logsumexp(torch.where(scored, exponent, filler), dim=1) - math.log(score.shape[1])
    scale = length.to(score.dtype) / seen.sum(-1).clamp(min=1)
    return scale * (mean * seen).sum(-1) / beta


def mixture(lower: Float[Tensor, " S"], upper: Float[Tensor, " S"], share: float) -> Float[Tensor, " S"]:
    """ω · upper + (1 − ω) · lower."""
    return share * upper + (1 - share) * lower
