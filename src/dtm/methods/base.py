"""What an objective is: a loss of the student on masked states, and the numbers worth logging."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from dtm.models.policy import Policy
from dtm.records import Loss, MaskedStates, Phase, Weights


@runtime_checkable
class Objective(Protocol):
    """A loss normalised over the whole batch: its parts add up, so micro-batches change nothing."""

    def loss(self, policy: Policy, states: MaskedStates, weights: Weights, phase: Phase) -> Loss:
        """The loss of some rows of a batch, differentiable in the student's parameters."""
        ...
