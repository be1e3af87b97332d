r"""Parts of policy-gradient losses: clipped ratios and estimates of KL, for tokens or sequences."""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor


def clipped(
    log_ratio: Float[Tensor, "*B"], advantage: Float[Tensor, "*B"], epsilon: float
) -> Float[Tensor, "*B"]:
    r"""min(ρ A, clip(ρ, 1−ε, 1+ε) A), ρ = π_θ/π_a: no gradient to move ρ further out of 1 ± ε.

    That is min(ρ, 1+ε) A for A ≥ 0 and max(ρ, 1−ε) A for A < 0. log ρ is cut, not ρ: a ratio that overflows
    would make nan of a zero advantage and of a gradient that the clip has stopped.
    """
    rewarded, punished = log_ratio.clamp(max=math.log1p(epsilon)), log_ratio.clamp(min=math.log1p(-epsilon))
    return torch.where(advantage < 0, punished, rewarded).exp() * advantage


def is_clipped(
    log_ratio: Float[Tensor, "*B"], advantage: Float[Tensor, "*B"], epsilon: float
) -> Bool[Tensor, "*B"]:
    """Return where the clip is active, and the gradient zero."""
    ratio = log_ratio.detach().exp()
    return ((advantage > 0) & (ratio > 1 + epsilon)) | ((advantage < 0) & (ratio < 1 - epsilon))


def k3(log_ratio: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    r"""e^d − d − 1, d = log π_ref − log π_θ: never negative, and unbiased for KL(π_θ ‖ π_ref) if x ~ π_θ."""
    return torch.expm1(log_ratio) - log_ratio


def k2(log_ratio: Float[Tensor, "*B"]) -> Float[Tensor, "*B"]:
    r"""½ d², d = log π_θ − log π_ref: biased for KL(π_θ ‖ π_ref), but with its gradient if x ~ π_θ.

    ∇ E_θ[½ d²] with the law of x held fixed is E_θ[d ∇ log π_θ] = ∇ KL; it grows only quadratically in d.
    """
    return log_ratio.square() / 2
