r"""The tilt of a buffer by h: weights e^{hr}, their effective sample size, the ladder, the KL to gain.

Functions of rewards alone. With w = e^{h r(x_1)} and Z = E_a[w], weights are w̄ = w / Z in log space, so that
rewards and tilts of any size stay finite.
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
"""Below this share of the buffer, a few rollouts decide the update."""


def log_mean_exp(x: Float[Tensor, " N"]) -> Float[Tensor, ""]:
    """The log of the mean of e^x, without overflow."""
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
    """Mean of e^{hr} over each row's peers on the row's own scale; 1 where it has none."""
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
    """The largest h ≤ cap whose weights e^{hr} keep ESS ≥ target, by bisection.

    ESS(h) falls with h. Rewards that are all equal (or nearly) keep ESS above the target at any h,
    and so does a 0/1 reward whose success rate exceeds it: then the cap is the answer.
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

    A remainder by rounding is merged: A = 6.6666667 is two steps of 10/3.
    """
    return step if final - tilt > step * (1 + ROUNDING) else final - tilt


def phases(final: float, step: float) -> int:
    """How many steps of h it takes from 0 to A by `next_step`."""
    return max(1, math.ceil(final / step - ROUNDING))


def effective_tilt(reward: Float[Tensor, " N"], group: Int[Tensor, " N"], reached: float) -> float:
    r"""The a at which the base's rollouts, weighted by e^{ar} within each prompt, earn ``reached``.

        mean over prompts p of  Σ_i r_i e^{a r_i} / Σ_i e^{a r_i}  =  reached

    The left side rises with a and tends to what an exact tilt by a would earn, from below as the rollouts
    of a prompt grow many; so the answer tells how far a run has really come whatever its nominal a, and
    overstates it with few rollouts. It is ∞ past the best of the base's rollouts, −∞ below the worst.
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


def available_kl(
    reward: Float[Tensor, " N"],
    group: Int[Tensor, " N"],
    h: float,
    baseline: Float[Tensor, " N"] | None = None,
) -> float:
    r"""KL(path_{a+h} ‖ path_a): what a phase can gain, in nats per sequence (docs/method.md, 8).

    For one prompt it is h E_{a+h}[r] − log Z. The objective weighs prompts p by s_p Z_p, where s_p is
    the mean of e^{−h b} over its baselines (1 without), so what it can gain is

        Σ_p s_p (E_p[w h r] − Z_p log Z_p) / Σ_p s_p Z_p.

    The joint formula h E_{a+h}[r] − log Z would also count the tilt of the prompt marginal, which no
    conditional model can absorb. Z log Z is convex, so the plug-in mean over a group of K overshoots;
    the jackknife removes that bias to first order. Groups of one say nothing about Z_p: they are left
    out, and without any larger group the answer is nan.
    """
    _, member, size = torch.unique(group, return_inverse=True, return_counts=True)
    shared = size[member] > 1
    if not bool(shared.any()):
        return math.nan
    _, member, size = torch.unique(group[shared], return_inverse=True, return_counts=True)
    # Shifting r by a constant changes nothing below, and keeps e^{hr} within float64.
    tilt = (h * reward[shared]).double()
    tilt = tilt - log_mean_exp(tilt)
    offset = torch.zeros_like(tilt) if baseline is None else -h * baseline[shared].double()

    def group_mean(value: Float[Tensor, " M"]) -> Float[Tensor, " G"]:
        return (
            torch.zeros(len(size), dtype=value.dtype, device=value.device).scatter_add(0, member, value)
            / size
        )

    weight = tilt.exp()
    mean = group_mean(weight)
    without = (size * mean)[member].sub(weight) / (size[member] - 1)
    plug_in, dropped = torch.special.xlogy(mean, mean), torch.special.xlogy(without, without)
    z_log_z = size * plug_in - (size - 1) * group_mean(dropped)
    scale = size * group_mean((offset - offset.max()).exp())
    return float((scale * (group_mean(weight * tilt) - z_log_z)).sum() / (scale * mean).sum())
