"""The replay buffer: weighted rollouts of one tilt, replaced group by group."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dtm import tilts
from dtm.errors import DivergedError, DtmWarning, MixedTiltError, require
from dtm.padding import concatenate
from dtm.records import Rollouts, Weights

Credit = Callable[..., Float[Tensor, " N"]]
"""Function that returns the credit of each rollout, from rewards, groups and, if known, `log_ratio`."""


def prompt_offset(
    reward: Float[Tensor, " N"], group: Int[Tensor, " N"], baseline: bool
) -> Float[Tensor, " N"]:
    """Return the baseline b of each reward: the mean of the prompt's other completions, or 0."""
    return tilts.peer_mean(reward, group) if baseline else torch.zeros_like(reward)


class Replay:
    """Rollouts of the current π_a, oldest groups first, and their weights for a tilt by h."""

    def __init__(
        self,
        rollouts: Rollouts,
        h: float,
        baseline: bool = False,
        credit: Credit | None = None,
    ) -> None:
        self.h, self.baseline, self.credit = h, baseline, credit
        self._hold(rollouts)

    def __len__(self) -> int:
        return len(self.rollouts)

    def _hold(self, rollouts: Rollouts) -> None:
        # On the CPU sums have a fixed order, so that all processes get the same bits.
        reward, group, device = rollouts.reward.cpu(), rollouts.group.cpu(), rollouts.reward.device
        self.rollouts = rollouts
        offset = prompt_offset(reward, group, self.baseline)
        log_z = float(tilts.log_mean_exp(self.h * (reward - offset).double()))
        weights = tilts.weigh(reward, group, self.h, offset, log_z)
        if self.credit is not None:
            measured = () if rollouts.log_ratio is None else (rollouts.log_ratio.cpu(),)
            weights = replace(weights, credit=self.credit(reward, group, *measured))
        self.ess = float(tilts.effective_sample_size(weights.log_weight))
        self.weights = weights.to(device)

    def check_weights(self) -> None:
        """Refuse weights e^{hr} that are not finite; warn where few rollouts carry them."""
        reward = self.rollouts.reward
        cause = (
            f"h = {self.h:g} is large for rewards from {float(reward.min()):.4g} to "
            f"{float(reward.max()):.4g}. Use --tilt.step auto, or a smaller --tilt.step"
        )
        finite = bool((self.weights.log_weight.isfinite() & self.weights.peers.isfinite()).all())
        require(finite, f"the weights e^(h r) of the rollouts are not finite: {cause}", DivergedError)
        if self.ess < tilts.LOW_ESS:
            notice = f"ESS {self.ess:.2g}: {self.ess:.1%} of the rollouts decide this phase, because {cause}"
            warnings.warn(notice, DtmWarning, stacklevel=2)

    @property
    def next_group(self) -> int:
        """The first unused group number."""
        return int(self.rollouts.group.max()) + 1

    def refresh(self, fresh: Rollouts) -> None:
        """Replace the oldest groups by the same number of new ones, which must have the same tilt."""
        require(
            fresh.tilt == self.rollouts.tilt,
            f"the buffer holds rollouts of tilt a = {self.rollouts.tilt:g} and cannot take rollouts of "
            f"a = {fresh.tilt:g}: the weights e^(hr) of the two mean different things. Rebuild the buffer.",
            MixedTiltError,
        )
        retired = torch.unique(self.rollouts.group)[: len(torch.unique(fresh.group))]
        stays = ~torch.isin(self.rollouts.group, retired)
        self._hold(concatenate([self.rollouts.select(stays), fresh]))

    def draw(
        self, rows: int, priority: float, generator: torch.Generator, neutral: float = 1.0
    ) -> tuple[Rollouts, Weights, Float[Tensor, " B"]]:
        """Draw a batch; return it with its weights, and the importance weight of each row.

        A row whose weight is near ``neutral`` (c̄, or the mean weight) has almost no gradient, but costs as
        much as any other. A share ``priority`` of the draws is therefore in proportion to |w̄ − neutral|, the
        rest is uniform. A row drawn with probability p has the importance weight 1 / (N p): the loss is
        unbiased, and no weight exceeds 1 / (1 − priority).
        """
        surprise = (self.weights.log_weight.double().exp() - neutral).abs()
        even = torch.full_like(surprise, 1 / len(self))
        total = surprise.sum()
        probability = (1 - priority) * even + priority * (surprise / total if total > 0 else even)
        # Systematic sampling: one uniform number, and every row comes ⌊B p⌋ or ⌈B p⌉ times.
        offset = torch.rand(1, generator=generator, dtype=torch.float64, device=probability.device)
        ticks = (torch.arange(rows, device=probability.device) + offset) / rows
        order = torch.randperm(len(self), generator=generator, device=probability.device)
        chosen = order[torch.searchsorted(probability[order].cumsum(0), ticks).clamp(max=len(self) - 1)]
        factor = (even / probability)[chosen].float()
        return self.rollouts.select(chosen), self.weights.select(chosen), factor

    def draw_groups(self, rows: int, pairs: bool, generator: torch.Generator) -> tuple[Rollouts, Weights]:
        """Draw whole groups, none twice, about ``rows`` rollouts; for ``pairs``, only those with credit."""
        group = self.weights.group
        useful = self.weights.credit != 0 if pairs else torch.ones_like(group, dtype=torch.bool)
        groups = torch.unique(group[useful])
        count = max(1, rows * len(groups) // int(useful.sum()))
        order = torch.randperm(len(groups), generator=generator, device=group.device)
        chosen = (useful & torch.isin(group, groups[order[:count]])).nonzero().squeeze(1)
        return self.rollouts.select(chosen), self.weights.select(chosen)
