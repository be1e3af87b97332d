r"""The pieces of a policy gradient: clipped ratios and an estimate of KL, of tokens or of sequences."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def clipped(
    log_ratio: Float[Tensor, "*B"], advantage: Float[Tensor, "*B"], epsilon: float
) -> Float[Tensor, "*B"]:
    r"""min(ρ A, clip(ρ, 1−ε, 1+ε) A), ρ = π_θ/π_a: no gain from moving on once ρ has left 1 ± ε."""
    ratio = log_ratio.exp()
    return torch.minimum(ratio * advantage, ratio.clamp(1 - epsilon, 1 + epsilon) * advantage)


def is_clipped(
    log_ratio: Float[Tensor, "*B"], advantage: Float[Tensor, "*B"], epsilon: float
) -> Bool[Tensor, "*B"]:
    """Where the clip acts, and the gradient is zero."""
    ratio = log_ratio.detach().exp()
    return ((advantage > 0) & (ratio > 1 + epsilon)) | ((advantage < 0) & (ratio < 1 - epsilon))


def k3(log_ratio: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    r"""e^d − d − 1, d = log π_ref − log π_θ: never negative, and unbiased for KL(π_θ ‖ π_ref) if x ~ π_θ."""
    return torch.expm1(log_ratio) - log_ratio
