"""Weighted rows: the state of steering between two blocks."""

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
    """The block with which it was finished."""


@dataclass(frozen=True, slots=True)
class Particles:
    """N weighted rows for each of P prompts; those of a prompt are neighbours among the M = P·N rows."""

    rows: Completions
    log_value: Float[Tensor, " M"]
    """log V of each row as it stands; a·r where it is finished, −∞ where it is and has no reward."""
    reward: Float[Tensor, " M"]
    """nan where a row is not finished, or has no reward."""
    ended: Int[Tensor, " M"]
    """The block with which a row was finished; −1: it is not."""
    log_weight: Float[Tensor, "P N"]
    """Since the last resampling."""
    log_z: Float[Tensor, " P"]
    """log Ẑ: the mean weights at all resamplings so far, multiplied."""

    @classmethod
    def start(cls, rows: Completions, count: int) -> Particles:
        """Rows without a revealed token, ``count`` for each prompt."""
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
        """The prompt of each row."""
        count = self.count
        return [row // count for row in rows]

    def require_rewards(self) -> None:
        """Refuse finished particles if those of some prompt have no reward at all."""
        if bool(self.log_weight.isneginf().all(1).any()):
            raise RewardError("no completion of a prompt has a reward: draw more of them, with a larger N")

    def path(self, rows: Int[Tensor, " P"]) -> Path:
        """Some finished rows, one for each prompt."""
        return Path(self.rows.take(rows.tolist()), self.ended[rows])

    def take(self, rows: Int[Tensor, " M"]) -> Particles:
        """The given rows in place of the present ones; weights and log Ẑ stay."""
        kept = {name: getattr(self, name)[rows] for name in ("log_value", "reward", "ended")}
        return replace(self, rows=self.rows.take(rows.tolist()), **kept)
