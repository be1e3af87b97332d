"""What the baselines share: rewards become credits of a whole group, and updates a batch of groups."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from jaxtyping import Float, Int
from torch import Tensor

from dtm.models.policy import Policy
from dtm.records import Loss, MaskedStates, Phase, Weights


class Baseline(ABC):
    """An objective that is trained in iterations: rollouts of π_a, μ updates on them, π_a ← π_θ.

    π_a is the policy that drew the rollouts ("old"), π_0 the base ("reference").
    """

    pairs: ClassVar[bool] = False
    """Whether a batch is made of pairs, credits +1 and −1 in neighbouring rows, that must stay together."""

    @property
    def reads_base(self) -> bool:
        """Whether π_0 is asked, and must be kept."""
        return False

    @abstractmethod
    def credit(self, reward: Float[Tensor, " N"], group: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
        """A_i of every rollout of a buffer, from the rewards of its whole group."""

    @abstractmethod
    def loss(self, policy: Policy, states: MaskedStates, weights: Weights, phase: Phase) -> Loss:
        """The loss of some sequences of a batch; `weights` has a row for each, `states` one for each draw."""
