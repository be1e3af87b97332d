r"""The progress meter of a phase: how much of its tilt the student has absorbed (`dtm.tilts.absorbed_share`).

It needs ℓ = log ρ_θ/ρ_a of rollouts that are not trained on: rows of the training buffer flatter the student,
which has seen them. Along the order in which the decoder revealed a rollout, ℓ is a sum over its steps:

    ℓ = Σ_s ℓ_s,   ℓ_s = Σ_{i revealed at s} log π_θ(x_1^i | x_s) − log π_a(x_1^i | x_s).

A few steps of each rollout are drawn, those more often at which π_a was not sure of the token: at the others
both models agree. The rollouts, the steps and the passes of π_a are the same for all readings of a phase, so
that an untrained student reads 0 exactly and the rise between two readings is known better than either.
"""

from __future__ import annotations

import math
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from dtm import tilts
from dtm.distributed import ALONE, Group
from dtm.masking import choose_steps, visited
from dtm.models.denoiser import Denoiser
from dtm.models.policy import Policy
from dtm.records import ROLLOUT_TENSORS, Rollouts

STATES = 2
"""Decoding steps drawn for each rollout."""
FEWEST = 4
"""Prompts whose rewards differ, below which the error of a reading is not known."""
PATIENCE = 3
"""Readings without a rise after which a phase no longer absorbs."""

Reading = tuple[float, float]
"""The absorbed share and its standard error."""


@final
class Meter:
    """Rollouts of π_a held aside for one phase, and the log-ratios of the student read on them so far."""

    def __init__(self, rollouts: Rollouts, h: float, generator: torch.Generator) -> None:
        self.rollouts, self.h = _informative(rollouts), h
        self.step, self.weight = choose_steps(self.rollouts, STATES, generator)
        self.before: Float[Tensor, " N"] | None = None
        """The estimate of log ρ_a."""
        self.ratios: list[Float[Tensor, " N"]] = []
        """ℓ at each reading."""

    def read(self, policy: Policy, together: int, group: Group = ALONE) -> Reading | None:
        """Measure the model that becomes the next π_a; None where no reward differs within a prompt.

        ``together`` rows share a forward pass; the passes are shared out in the ``group``. π_a runs with its
        adapter as the student does, so that both take the same arithmetic.
        """
        if not len(self.rollouts):
            return None
        if self.before is None:
            with policy.gathered(policy.teacher):
                self.before = self._log_prob(policy.teacher, together, group)
        with policy.gathered(policy.successor):
            self.ratios.append(self._log_prob(policy.successor, together, group) - self.before)
        return self._share(self.ratios[-1])

    @property
    def surely_absorbed(self) -> float:
        """The share less its standard error, the smaller of the last two readings; −∞ before there are two.

        One reading is not enough: the first updates of a phase can overshoot its tilt and fall back.
        """
        if len(self.ratios) < 2:
            return -math.inf
        return min(share - error for share, error in map(self._share, self.ratios[-2:]))

    @property
    def has_stalled(self) -> bool:
        """Whether something was absorbed, and the last readings show no rise beyond its standard error."""
        if len(self.ratios) <= PATIENCE:
            return False
        latest = self.ratios[-1]
        (share, error), (rise, rise_error) = (
            self._share(latest),
            self._share(latest - self.ratios[-1 - PATIENCE]),
        )
        return share > 2 * error and rise <= rise_error

    def state(self) -> dict[str, Tensor]:
        """The tensors that `restored` needs besides the arguments of the phase."""
        saved = {name: getattr(self.rollouts, name) for name in ROLLOUT_TENSORS}
        if self.before is not None:
            saved |= {"before": self.before, "ratios": torch.stack(self.ratios)}
        return saved

    @classmethod
    def restored(cls, state: dict[str, Tensor], tilt: float, h: float, generator: torch.Generator) -> Meter:
        """The meter whose `state` was saved; ``generator`` is the one that it was made with."""
        meter = cls(Rollouts(**{name: state[name] for name in ROLLOUT_TENSORS}, tilt=tilt), h, generator)
        if "before" in state:
            meter.before, meter.ratios = state["before"], list(state["ratios"])
        return meter

    def _share(self, log_ratio: Float[Tensor, " N"]) -> Reading:
        """The share and its error, infinite with too few prompts; on the CPU, where sums have one order."""
        reward, group = self.rollouts.reward.cpu(), self.rollouts.group.cpu()
        share, error = tilts.absorbed_share(log_ratio.cpu(), reward, group, self.h)
        return share, error if len(torch.unique(group)) >= FEWEST else math.inf

    @torch.no_grad()
    def _log_prob(self, model: Denoiser, together: int, group: Group) -> Float[Tensor, " N"]:
        """An estimate of each rollout's log-probability along the order in which it was revealed.

        The states of a rollout share a pass, so its sum does not depend on how passes are shared out.
        """
        found = torch.zeros(len(self.rollouts), dtype=torch.float64, device=self.step.device)
        row = torch.arange(len(self.rollouts), device=self.step.device).repeat_interleave(self.step.shape[1])
        step, weight = self.step.flatten(), self.weight.flatten()
        rows = max(1, together // STATES) * STATES
        parts = torch.split(torch.arange(len(row), device=row.device), rows)
        own = group.share(len(parts))
        for part in parts[own.start : own.stop]:
            states = visited(self.rollouts.select(row[part]), step[part], model.mask_id)
            hidden = model(states.tokens, states.attention, states.scored, head=False)
            log_prob = model.log_prob(hidden, states.x1).double()
            found.index_add_(0, row[part][states.row], weight[part][states.row] * log_prob)
        return found if group.size == 1 else sum(group.gather(found.cpu()), torch.zeros(())).to(found.device)


def _informative(rollouts: Rollouts) -> Rollouts:
    """The rollouts of prompts whose rewards differ; the others have no share in a reading."""
    groups, member = torch.unique(rollouts.group, return_inverse=True)
    reward = rollouts.reward
    low, high = (
        torch.empty(len(groups), dtype=reward.dtype, device=reward.device).scatter_reduce(
            0, member, reward, extreme, include_self=False
        )
        for extreme in ("amin", "amax")
    )
    return rollouts.select((low < high)[member])
