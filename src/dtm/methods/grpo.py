"""The common loss of methods with token ratios, which differ in masks and in the weights of tokens."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from dtm.methods.ratios import clipped, is_clipped, k3
from dtm.methods.surrogates import token_scores
from dtm.models.policy import Policy
from dtm.records import Loss, MaskedStates


def clipped_tokens(
    policy: Policy,
    states: MaskedStates,
    score: Float[Tensor, "S M L"],
    share: Float[Tensor, "S M L"],
    credit: Float[Tensor, " S"],
    epsilon: float,
    beta: float = 0.0,
    old: Float[Tensor, "S M L"] | None = None,
) -> Loss:
    r"""Σ share · [ −min(ρ A, clip(ρ, 1−ε, 1+ε) A) + β (e^d − d − 1) ] over the tokens of some sequences.

    ``score`` is log π_θ of each token, ρ = π_θ/π_a and d = log π_0/π_θ; π_0 is evaluated only if β > 0.
    ``old`` is log π_a of each token if it is known; None: π_a is evaluated.
    """
    advantage = credit[:, None, None].expand_as(score)
    log_ratio = score - (token_scores(policy.log_pi_a(states), states) if old is None else old)
    value = -(share * clipped(log_ratio, advantage, epsilon)).sum()
    metrics = {"clipped": (share * is_clipped(log_ratio, advantage, epsilon)).sum()}
    if beta > 0:
        divergence = (share * k3(token_scores(policy.log_pi_0(states), states) - score)).sum()
        value, metrics["kl"] = value + beta * divergence, divergence.detach()
    return Loss(value, metrics)
