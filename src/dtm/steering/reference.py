r"""Estimate the mean reward of the tilted law from weighted rollouts of the base.

    E_{ρ_a}[r] ≈ (1/P) Σ_p μ_p,    μ_p = Σ_i r_i e^{a r_i} / Σ_i e^{a r_i}

over the rollouts i of prompt p. A perfect tilt by a would earn this mean: it is the reference for tuning and
SMC. μ_p is biased by O(1/n) in the rollouts n of a prompt, towards their plain mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from dtm.errors import RewardError, require
from dtm.steering.weights import effective_share

FEW = 10.0
"""Fewest effective rollouts per prompt for a reliable mean and interval."""


@dataclass(frozen=True, slots=True)
class TiltedMean:
    """The mean reward of a tilted law, with its 95 % interval over the rollouts of the same prompts."""

    tilt: float
    mean: float
    low: float
    high: float
    rollouts: int
    """Number of rollouts per prompt."""
    poor: int
    """Prompts with fewer than `FEW` effective rollouts."""


def tilted_mean(reward: Float[Tensor, "P N"], tilt: float) -> TiltedMean:
    r"""Return the weighted mean of N rollouts of each of P prompts; ignore nan rewards.

    Var μ_p ≈ Σ_i w̄_i² (r_i − μ_p)² with normalised weights w̄, and prompts are independent: the interval is
    mean ± 1.96 (Σ_p Var μ_p)^{1/2} / P. It covers other rollouts, not other prompts.
    """
    given = ~reward.isnan()
    require(bool(given.any(1).all()), "no rollout of a prompt has a reward: draw more of them", RewardError)
    value = reward.double().nan_to_num()
    log_weight = (tilt * value).masked_fill(~given, -torch.inf)
    weight = log_weight.softmax(1)
    means = (weight * value).sum(1)
    variance = (weight.square() * (value - means[:, None]).square()).sum()
    mean, half = float(means.mean()), 1.96 * math.sqrt(float(variance)) / len(means)
    poor = int((effective_share(log_weight) * reward.shape[1] < FEW).sum())
    return TiltedMean(tilt, mean, mean - half, mean + half, reward.shape[1], poor)
