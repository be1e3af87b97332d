r"""The mathematics of one tilt a → a + h, as pure functions.

With w = e^{h r(x_1)} and Z = E_a[w], everything here works with w̄ = w / Z and c̄ = c / Z in log
space, so that rewards and tilts of any size stay finite. Equation numbers are the paper's, in the
order of its source: (16) is the c-DTM objective and (17) its target.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dtm.records import Weights

# ── weights ──────────────────────────────────────────────────────────────────────────────────────


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


# ── the ladder of tilts ──────────────────────────────────────────────────────────────────────────

ROUNDING = 1e-6
"""Tolerance as a share of h: a last phase shorter than this is merged into the one before."""


def next_step(tilt: float, final: float, step: float) -> float:
    """h, cut so that the last phase lands on A exactly; also after a resume.

    A remainder by rounding is merged: A = 6.6666667 is two steps of 10/3.
    """
    return step if final - tilt > step * (1 + ROUNDING) else final - tilt


def phases(final: float, step: float) -> int:
    """How many steps of h it takes from 0 to A by `next_step`."""
    return max(1, math.ceil(final / step - ROUNDING))


# ── the loss ─────────────────────────────────────────────────────────────────────────────────────


def advantage(log_weight: Float[Tensor, " N"], control: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    r"""w̄ − c̄; where the two nearly agree, by c̄·expm1(log w̄ − log c̄), which loses no digits."""
    gap = log_weight - control.clamp(min=torch.finfo(control.dtype).tiny).log()
    near = control * torch.expm1(gap.clamp(-1, 1))
    return torch.where((control > 0) & (gap.abs() < 1), near, log_weight.exp() - control)


def c_dtm_cross_entropy(
    log_pi: Float[Tensor, "N V"],
    log_pi_a: Float[Tensor, "N V"],
    x1: Int[Tensor, " N"],
    log_weight: Float[Tensor, " N"],
    control: Float[Tensor, " N"],
    keep: Bool[Tensor, " N"] | None = None,
) -> Float[Tensor, " N"]:
    r"""w̄ CE(T_c ‖ π_θ) at each scored position, without building T_c  [eqs. 16, 17].

    By (17), w̄ T_c = c̄ π_a + (w̄ − c̄) 1{x_1}, so the loss is

        c̄ · CE(π_a ‖ π_θ) − (w̄ − c̄) · log π_θ(x_1):

    distil the teacher with weight c̄, plus likelihood with advantage w̄ − c̄. Where ``keep`` is
    false (see `within_ratio_bound`) the advantage term is dropped.
    """
    distillation = -(log_pi_a.exp() * log_pi).sum(-1)
    hit = log_pi.gather(-1, x1[:, None]).squeeze(-1)
    gain = advantage(log_weight, control).to(hit.dtype)
    if keep is not None:
        gain = gain * keep
    return control.to(hit.dtype) * distillation - gain * hit


def c_dtm(
    log_pi: Float[Tensor, "N V"],
    log_pi_a: Float[Tensor, "N V"],
    x1: Int[Tensor, " N"],
    log_weight: Float[Tensor, " N"],
    control: Float[Tensor, " N"] | float = 1.0,
    *,
    bound: float | None = None,
) -> Float[Tensor, " N"]:
    r"""The c-DTM loss at each scored position, for a training loop of your own  [eqs. 16, 17].

    The loss of a batch is the mean over rows of ``row_weight · Σ_S``; see `dtm.masking.sample`.

    Args:
        log_pi: log π_θ at the scored positions, with a gradient.
        log_pi_a: log π_a at the same positions, without one.
        x1: the clean token at each of them.
        log_weight: log w̄ of the rollout behind each position, from `weigh`.
        control: c̄, in units of the mean weight; a number (see `AdaptiveControl`) or one per position.
        bound: h · (max r − min r) switches the ratio guard on (see `within_ratio_bound`).

    Returns:
        w̄ CE(T_c ‖ π_θ), unreduced.

    Example:
        >>> log_pi = torch.tensor([[0.5, 0.5]]).log()
        >>> c_dtm(log_pi, log_pi, torch.tensor([0]), torch.tensor([0.0]), control=1.0)  # w̄ = c̄: distillation
        tensor([0.6931])
    """
    c = torch.as_tensor(control, dtype=log_weight.dtype, device=log_weight.device).expand_as(log_weight)
    keep = None
    if bound is not None:
        with torch.no_grad():
            at_x1 = x1[:, None]
            log_ratio = (log_pi.gather(-1, at_x1) - log_pi_a.gather(-1, at_x1)).squeeze(-1)
            keep = within_ratio_bound(log_ratio, advantage(log_weight, c), bound)
    return c_dtm_cross_entropy(log_pi, log_pi_a, x1, log_weight, c, keep)


def within_ratio_bound(
    log_ratio: Float[Tensor, " N"], gain: Float[Tensor, " N"], bound: float
) -> Bool[Tensor, " N"]:
    r"""The ratio guard: false where the advantage would push π_θ(x_1) past what π_{a+h} can be.

    Since π_{a+h}/π_a = E_a[w | x_t, x_1^i] / E_a[w | x_t], every ratio lies in e^{±h·range(r)}. With
    ``log_ratio`` = log π_θ(x_1) − log π_a(x_1) and ``bound`` = h·range(r), a positive advantage is
    refused above the bound and a negative one below it. The minimiser satisfies the bound, so the
    population's fixed point is untouched: the guard only stops run-away on a finite buffer.
    """
    too_high = (gain > 0) & (log_ratio > bound)
    too_low = (gain < 0) & (log_ratio < -bound)
    return ~(too_high | too_low)


def control_moments(
    pi: Float[Tensor, "N V"],
    pi_a: Float[Tensor, "N V"],
    x1: Int[Tensor, " N"],
    weight: Float[Tensor, " N"],
) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
    r"""Numerator and denominator of the variance-minimising c, in logit space (docs/method.md, 5.1).

        c* = E[w (1 − π_a(x) − π_θ(x) + ⟨π_a, π_θ⟩)] / E[1 − 2 π_a(x) + |π_a|²],   x = x_1^i

    The best constant is the ratio of both terms summed over many states.
    """
    at_x1 = x1[:, None]
    teacher, student = pi_a.gather(-1, at_x1).squeeze(-1), pi.gather(-1, at_x1).squeeze(-1)
    numerator = weight * (1 - teacher - student + (pi_a * pi).sum(-1))
    denominator = 1 - 2 * teacher + pi_a.square().sum(-1)
    return numerator, denominator


@dataclass(slots=True)
class AdaptiveControl:
    r"""Running estimate of c̄*, the best constant control variate, from past batches alone.

    Keep one per phase: ``control.value`` before a batch, ``control.update(numerator, denominator)`` after it,
    with the sums of `control_moments` over the batch.

    >>> control = AdaptiveControl()
    >>> control.value  # c̄ = 1, the mean weight, before there is evidence
    1.0
    >>> control.update(3.0, 4.0)
    >>> control.value
    0.75
    """

    memory: float = 0.95
    """Share of the past that each update keeps."""
    numerator: float = 0.0
    denominator: float = 0.0

    @property
    def value(self) -> float:
        """c̄*, clipped to [0, 1.5]; 1 before there is evidence."""
        if self.denominator <= 0:
            return 1.0
        return min(max(self.numerator / self.denominator, 0.0), 1.5)

    @torch.no_grad()
    def observe(
        self,
        log_pi: Float[Tensor, "N V"],
        log_pi_a: Float[Tensor, "N V"],
        x1: Int[Tensor, " N"],
        log_weight: Float[Tensor, " N"],
        row_weight: Float[Tensor, " N"],
    ) -> None:
        """Update from the scored positions of a batch, with the arguments of `c_dtm`.

        ``row_weight`` is L/k of each position's row; its gradient carries that factor, and its variance the
        square.
        """
        sums = control_moments(log_pi.exp(), log_pi_a.exp(), x1, log_weight.exp())
        numerator, denominator = (float((row_weight.square() * part).sum()) for part in sums)
        self.update(numerator, denominator)

    def update(self, numerator: float, denominator: float) -> None:
        """Add the sums of one batch."""
        self.numerator = self.memory * self.numerator + (1 - self.memory) * numerator
        self.denominator = self.memory * self.denominator + (1 - self.memory) * denominator


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


# ── the progress meter ───────────────────────────────────────────────────────────────────────────


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


def gained_kl(
    log_pi: Float[Tensor, "N V"],
    log_pi_a: Float[Tensor, "N V"],
    x1: Int[Tensor, " N"],
    log_weight: Float[Tensor, " N"],
    control: float = 1.0,
) -> Float[Tensor, " N"]:
    r"""Each position's share of (L(π_a) − L(π_θ)) / Z, the nats absorbed so far (docs/method.md, 8).

        (w̄ − c̄)(log π_θ − log π_a)(x_1) − c̄ KL(π_a ‖ π_θ),   whose mean does not depend on c̄.

    Summed over S, times ``row_weight``, averaged over rows: `gained`. Then
    remaining = available − gained bounds KL(ρ_{1,a+h} ‖ ρ_θ), and absorbed = gained / available ≤ 1.
    """
    log_ratio = log_pi - log_pi_a
    at_x1 = log_ratio.gather(-1, x1[:, None]).squeeze(-1)
    divergence = -(log_pi_a.exp() * log_ratio).sum(-1)
    return (torch.expm1(log_weight) + (1 - control)) * at_x1 - control * divergence
