"""Credit of a completion relative to its group: advantages, weights and pairs.

Functions of all rewards of a buffer and their groups, so that micro-batches do not change them. A group whose
rewards are all equal gets exact zeros.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Advantage = Callable[[Float[Tensor, " N"], Int[Tensor, " N"]], Float[Tensor, " N"]]
"""Function that returns A_i from rewards and groups."""


def centred(reward: Float[Tensor, " N"], group: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
    """A_i = r_i − mean of the group, r_i included (d1, wd1, SPG, GDPO)."""
    gap = reward.double() - _mean(reward.double(), group)
    return torch.where(tied(reward, group), 0.0, gap).to(reward.dtype)


def z_score(reward: Float[Tensor, " N"], group: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
    """A_i = (r_i − mean) / std, the population's standard deviation (UniGRPO, TraceRL)."""
    gap = centred(reward.double(), group)
    spread = _mean(gap.square(), group).sqrt()
    return torch.where(tied(reward, group), 0.0, gap / spread).to(reward.dtype)


def leave_one_out(reward: Float[Tensor, " N"], group: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
    """A_i = r_i − mean of the others = K/(K−1) times the centred one; the baseline is independent of r_i."""
    size = _size(group).double()
    scaled = centred(reward.double(), group) * size / (size - 1).clamp(min=1)
    return scaled.to(reward.dtype)


AdvantageName = Literal["mean", "z-score", "loo"]
ADVANTAGES: dict[str, Advantage] = {"mean": centred, "z-score": z_score, "loo": leave_one_out}


def softmax_credit(
    advantage: Float[Tensor, " N"], group: Int[Tensor, " N"], sharpness: float, negatives: bool = True
) -> Float[Tensor, " N"]:
    r"""wd1's K (w⁺ − w⁻), with w^± = softmax over the group of ±ψ A; without ``negatives``, K w⁺.

    Times the group's size K, so that the mean over rows is the mean over groups of its sum.
    """
    tilt = sharpness * advantage.double()
    weight = group_weights(tilt, group)
    if negatives:
        weight = weight - group_weights(-tilt, group)
    return weight.to(advantage.dtype)


def group_weights(log_weight: Float[Tensor, " N"], group: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
    r"""K e^{ℓ_i} / Σ_j e^{ℓ_j} over the group: self-normalised importance weights, of mean 1 in a group."""
    weight = (log_weight - _extreme(log_weight, group, "amax")).exp()
    return weight / _mean(weight, group)


def log_partition(reward: Float[Tensor, " N"], group: Int[Tensor, " N"], psi: float) -> Float[Tensor, " N"]:
    r"""A_i = r_i − (1/ψ) log mean_{j≠i} e^{ψ r_j}: ψ A_i estimates log of e^{ψ r_i} / Z, the tilt by ψ.

    The estimate of Z leaves r_i out; one that includes it would shrink the target. A group of one has A = 0.
    """
    value = reward.double()
    gap = torch.zeros_like(value)
    for members in (group == number for number in torch.unique(group)):
        own = value[members]
        if len(own) > 1:
            others = own.expand(len(own), -1)[~torch.eye(len(own), dtype=torch.bool)].view(len(own), -1)
            peak = others.amax(1, keepdim=True)
            mean = (psi * (others - peak)).exp().mean(1)
            gap[members] = own - peak.squeeze(1) - mean.log() / psi
    return gap.to(reward.dtype)


def best_and_worst(reward: Float[Tensor, " N"], group: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
    """+1 for the (first) best completion of a prompt, −1 for the worst, 0 for all others and in ties."""
    place = torch.arange(len(reward), device=reward.device)
    high, low = _extreme(reward, group, "amax"), _extreme(reward, group, "amin")

    def first(rows: Bool[Tensor, " N"]) -> Bool[Tensor, " N"]:
        return rows & (place == _extreme(torch.where(rows, place, len(reward)), group, "amin"))

    pair = first(reward == high).to(reward.dtype) - first(reward == low).to(reward.dtype)
    return torch.where(high == low, 0.0, pair).to(reward.dtype)


# ── within groups ────────────────────────────────────────────────────────────────────────────────


def _size(group: Int[Tensor, " N"]) -> Int[Tensor, " N"]:
    _, member, size = torch.unique(group, return_inverse=True, return_counts=True)
    return size[member]


def _mean(value: Float[Tensor, " N"], group: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
    _, member, size = torch.unique(group, return_inverse=True, return_counts=True)
    total = torch.zeros(len(size), dtype=value.dtype, device=value.device).index_add(0, member, value)
    return (total / size)[member]


def _extreme(value: Tensor, group: Int[Tensor, " N"], which: str) -> Tensor:
    groups, member = torch.unique(group, return_inverse=True)
    empty = torch.zeros(len(groups), dtype=value.dtype, device=value.device)
    return empty.scatter_reduce(0, member, value, which, include_self=False)[member]


def tied(reward: Float[Tensor, " N"], group: Int[Tensor, " N"]) -> Bool[Tensor, " N"]:
    """Return whether all completions of the same prompt have the same reward."""
    return _extreme(reward, group, "amax") == _extreme(reward, group, "amin")
