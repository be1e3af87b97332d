r"""The c-DTM loss at scored positions: cross-entropy, ratio guard, control variate, nats gained.

Pure functions of log-probabilities and weights. With w = e^{h r(x_1)} and Z = E_a[w], all work with w̄ = w / Z
and c̄ = c / Z (see `dtm.tilts`). Equation numbers are the paper's, in the order of its source: (16) is the
c-DTM objective and (17) its target.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dtm.tilts import weigh

__all__ = [
    "AdaptiveControl",
    "advantage",
    "c_dtm",
    "c_dtm_cross_entropy",
    "control_moments",
    "gained_kl",
    "weigh",
    "within_ratio_bound",
]


def advantage(log_weight: Float[Tensor, " N"], control: Float[Tensor, " N"]) -> Float[Tensor, " N"]:
    r"""Return w̄ − c̄; where the two are close, as c̄·expm1(log w̄ − log c̄), which avoids cancellation."""
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
    r"""Ratio guard: false where the advantage would push π_θ(x_1) beyond the range of π_{a+h}.

    Since π_{a+h}/π_a = E_a[w | x_t, x_1^i] / E_a[w | x_t], every ratio lies in e^{±h·range(r)}. With
    ``log_ratio`` = log π_θ(x_1) − log π_a(x_1) and ``bound`` = h·range(r), a positive advantage is
    dropped above the bound and a negative one below it. The minimiser satisfies the bound, so the
    population's fixed point does not change: the guard only prevents divergence on a finite buffer.
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


def gained_kl(
    log_pi: Float[Tensor, "N V"],
    log_pi_a: Float[Tensor, "N V"],
    x1: Int[Tensor, " N"],
    log_weight: Float[Tensor, " N"],
    control: float = 1.0,
) -> Float[Tensor, " N"]:
    r"""Each position's share of (L(π_a) − L(π_θ)) / Z, the nats gained so far (docs/method.md, 8).

        (w̄ − c̄)(log π_θ − log π_a)(x_1) − c̄ KL(π_a ‖ π_θ),   whose mean does not depend on c̄.

    Summed over S, times ``row_weight``, averaged over rows: `gained`. With available = h E_{a+h}[r] − log Z,
    available − gained bounds KL(ρ_{1,a+h} ‖ ρ_θ).
    """
    log_ratio = log_pi - log_pi_a
    at_x1 = log_ratio.gather(-1, x1[:, None]).squeeze(-1)
    divergence = -(log_pi_a.exp() * log_ratio).sum(-1)
    return (torch.expm1(log_weight) + (1 - control)) * at_x1 - control * divergence
