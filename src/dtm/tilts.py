r"""The tilt of a buffer by h: weights e^{hr}, their effective sample size, the ladder, the share absorbed.

Functions of rewards and log-ratios. With w = e^{h r(x_1)} and Z = E_a[w], weights are w̄ = w / Z in log space,
so that rewards and tilts of any size stay finite.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dtm.records import Weights

ROUNDING = 1e-6
"""Tolerance as a share of h: a last phase shorter than this is merged into the one before."""
LOW_ESS = 0.1
"""Lowest healthy ESS, as a fraction of the buffer: below it a few rollouts dominate the update."""


def log_mean_exp(x: Float[Tensor, " N"]) -> Float[Tensor, ""]:
    """Return the log of the mean of e^x, without overflow."""
    return torch.logsumexp(x, dim=0) - math.log(len(x))


def peer_mean(value: Float[Tensor, " N"], group: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
    """Mean of the other members of each row's group; for a group of one, of all other rows."""
    _, member, size = torch.unique(group, return_inverse=True, return_counts=True)
    total = torch.zeros(len(size), dtype=value.dtype, device=value.device).scatter_add(0, member, value)
    others = (size[member] - 1).to(value.dtype)
    everyone = (value.sum() - value) / max(len(value) - 1, 1)
    return torch.where(others > 0, (total[member] - value) / others.clamp(min=1), everyone)


def weigh(
    reward: Float[Tensor, " N"],
    group: Int[Tensor, " N"],
    h: float,
    baseline: Float[Tensor, " N"] | None = None,
    log_z: float | None = None,
) -> Weights:
    r"""w̄ = e^{h (r − b)} / Z for every rollout of a buffer, and the mean w̄ of its peers.

    The baseline b may depend on the prompt and on its *other* completions (`peer_mean` of the reward):
    it multiplies the prompt's loss by a constant and moves no minimiser (docs/method.md, 5.3), but keeps
    prompts whose rewards are always high from outweighing all others.
    ``log_z`` is log Z of the whole buffer; by default the log-mean-exp over the rewards given.
    """
    # h r − log Z cancels to a small number: float32 would leave w̄ − c̄ with three digits at h = 1e-4.
    exact = reward.double()
    offset = torch.zeros_like(exact) if baseline is None else baseline.double()
    tilt = h * (exact - offset)
    log_z = float(log_mean_exp(tilt)) if log_z is None else log_z
    peers = _peer_weight(h * exact, group, h * offset + log_z)
    log_weight, no_credit = (tilt - log_z).to(reward.dtype), torch.zeros_like(reward)
    return Weights(log_weight, peers.to(reward.dtype), log_z, reward, group, no_credit)


def _peer_weight(
    tilt: Float[Tensor, " N"], group: Int[Tensor, " N"], log_scale: Float[Tensor, " N"]
) -> Float[Tensor, " N"]:
    """Mean of e^{hr} over each row's peers, relative to the row's own scale; 1 for a row without peers."""
    _, member, size = torch.unique(group, return_inverse=True, return_counts=True)
    # The group's peak is factored out: a sum over e^{500} would drown its neighbours.
    peak = torch.full(size.shape, -math.inf, dtype=tilt.dtype, device=tilt.device)
    peak = peak.scatter_reduce(0, member, tilt, "amax")[member]
    peers = peer_mean((tilt - peak).exp(), group) * (peak - log_scale).exp()
    return torch.where(size[member] > 1, peers, torch.ones_like(peers))


def effective_sample_size(log_weight: Float[Tensor, " N"]) -> Float[Tensor, ""]:
    r"""ESS = (Σ w)² / (N Σ w²), the fraction of the buffer that the weights effectively use."""
    return (2 * torch.logsumexp(log_weight, 0) - torch.logsumexp(2 * log_weight, 0)).exp() / len(log_weight)


def step_for_ess(reward: Float[Tensor, " N"], target: float, cap: float) -> float:
    """Find the largest h ≤ cap whose weights e^{hr} keep ESS ≥ target, by bisection.

    ESS(h) falls with h. Rewards that are all equal (or nearly) keep ESS above the target at any h,
    and so does a 0/1 reward whose success rate exceeds it: then the result is the cap.
    """

    def keeps(h: float) -> bool:
        return float(effective_sample_size(h * reward)) >= target

    if keeps(cap):
        return cap
    low, high = 0.0, cap
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if keeps(middle) else (low, middle)
    return low


def next_step(tilt: float, final: float, step: float) -> float:
    """h, cut so that the last phase lands on A exactly; also after a resume.

    A remainder that is only a rounding error is merged: A = 6.6666667 is two steps of 10/3.
    """
    return step if final - tilt > step * (1 + ROUNDING) else final - tilt


def phases(final: float, step: float) -> int:
    """Return the number of phases from 0 to A in steps of h, by `next_step`."""
    return max(1, math.ceil(final / step - ROUNDING))


def effective_tilt(reward: Float[Tensor, " N"], group: Int[Tensor, " N"], reached: float) -> float:
    r"""The a at which the base's rollouts, weighted by e^{ar} within each prompt, earn ``reached``.

        mean over prompts p of  Σ_i r_i e^{a r_i} / Σ_i e^{a r_i}  =  reached

    The left side rises with a and tends to what an exact tilt by a would earn, from below as the rollouts
    of a prompt grow many. So the result is the tilt that a run has really reached, whatever its nominal a;
    with few rollouts it is too high. It is ∞ above the best of the base's rollouts, −∞ below the worst.
    """
    _, member = torch.unique(group, return_inverse=True)
    groups = int(member.max()) + 1

    def earned(a: float) -> float:
        tilt = a * reward.double()
        peak = torch.full((groups,), -math.inf, dtype=tilt.dtype, device=tilt.device)
        weight = (tilt - peak.scatter_reduce(0, member, tilt, "amax")[member]).exp()
        sums = torch.zeros(2, groups, dtype=tilt.dtype, device=tilt.device)
        total, gained = sums.index_add(1, member, torch.stack([weight, weight * reward]))
        return float((gained / total).mean())

    low, high = -1e4, 1e4
    if reached >= earned(high):
        return math.inf
    if reached <= earned(low):
        return -math.inf
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if earned(middle) < reached else (low, middle)
    return low


def absorbed_share(
    log_ratio: Float[Tensor, " N"], reward: Float[Tensor, " N"], group: Int[Tensor, " N"], h: float
) -> tuple[float, float]:
    r"""The share of a tilt by h that a student has absorbed, and its standard error (docs/method.md, 8).

        absorbed = Σ_p (E_{a+h,p}[ℓ] − E_{a,p}[ℓ]) / Σ_p (E_{a+h,p}[h r] − E_{a,p}[h r]),   ℓ = log ρ_θ / ρ_a

    for rollouts of π_a, where E_{a+h,p} weighs the completions of prompt p by e^{hr}. Each difference is a
    covariance of ℓ, or of h r, with the same weights. If the student has tilted by s h, then ℓ is s h r plus
    a constant of the prompt, and the estimate is s for any sample: 0 before training, 1 at π_{a+h}.
    Errors of ℓ that have nothing to do with the reward average out.

    Linear in ``log_ratio``: a difference of two of them gives what was absorbed in between. The error is that
    of the delete-one jackknife over prompts, which are independent, about the share itself and without the
    factor (n − 1)/n. Unlike residuals about the share, it counts that a prompt with a large part of the lower
    sum pulls the share towards itself. Without a prompt whose rewards differ the share is nan; with a single
    one its error is infinite.
    """
    _, member, size = torch.unique(group, return_inverse=True, return_counts=True)

    def total(value: Float[Tensor, " N"]) -> Float[Tensor, " P"]:
        return torch.zeros(len(size), dtype=value.dtype, device=value.device).index_add(0, member, value)

    tilt = h * reward.double()
    peak = torch.full((len(size),), -math.inf, dtype=tilt.dtype, device=tilt.device)
    weight = (tilt - peak.scatter_reduce(0, member, tilt, "amax")[member]).exp()
    contrast = weight / total(weight)[member] - 1 / size[member].double()
    moved, wanted = total(contrast * log_ratio.double()), total(contrast * tilt)
    prompts = int((wanted > 0).sum())
    if prompts == 0:
        return math.nan, math.inf
    share = moved.sum() / wanted.sum()
    without = (moved.sum() - moved) / (wanted.sum() - wanted)
    return float(share), float((without - share).square().sum().sqrt()) if prompts > 1 else math.inf
