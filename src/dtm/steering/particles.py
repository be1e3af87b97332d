"""Particles (weighted rows): the state of steering between two blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dtm.errors import RewardError
from dtm.records import Completions


@dataclass(frozen=True, slots=True)
class Path:
    """A finished row for each of P prompts."""

    rows: Completions
    ended: Int[Tensor, " P"]
    """The last block that it decoded."""


@dataclass(frozen=True, slots=True)
class Particles:
    """N weighted rows for each of P prompts; the rows of a prompt are adjacent among the M = P·N rows."""

    rows: Completions
    log_value: Float[Tensor, " M"]
    """log V of each row: an estimate if unfinished, a·r if finished, −∞ if finished without a reward."""
    reward: Float[Tensor, " M"]
    """Reward of each row; nan if it is not finished, or has no reward."""
    ended: Int[Tensor, " M"]
    """The last block that a finished row decoded; −1: not finished."""
    log_weight: Float[Tensor, "P N"]
    """Log-weight of each row since the last resampling."""
    log_z: Float[Tensor, " P"]
    """log Ẑ: the log of the product of mean weights at all resamplings so far."""

    @classmethod
    def start(cls, rows: Completions, count: int) -> Particles:
        """Return rows without a revealed token, ``count`` per prompt."""
        device, prompts = rows.tokens.device, len(rows) // count
        zero = torch.zeros(len(rows), dtype=torch.float64, device=device)
        none = torch.full((len(rows),), -1, device=device)
        return cls(
            rows, zero, zero * torch.nan, none, zero.view(prompts, count), zero.view(prompts, count)[:, 0]
        )

    @property
    def count(self) -> int:
        """N."""
        return self.log_weight.shape[1]

    def prompts(self, rows: Sequence[int]) -> list[int]:
        """Number of each row's prompt."""
        count = self.count
        return [row // count for row in rows]

    def require_rewards(self) -> None:
        """Raise an error if no particle of some prompt has a reward."""
        if bool(self.log_weight.isneginf().all(1).any()):
            raise RewardError("no completion of a prompt has a reward: draw more of them, with a larger N")

    def path(self, rows: Int[Tensor, " P"]) -> Path:
        """Return the given finished rows, one per prompt."""
        return Path(self.rows.select(rows), self.ended[rows])

    def take(self, rows: Int[Tensor, " M"]) -> Particles:
        """Replace the rows by the given ones; keep weights and log Ẑ."""
        kept = {name: getattr(self, name)[rows] for name in ("log_value", "reward", "ended")}
        return replace(self, rows=self.rows.select(rows), **kept)
