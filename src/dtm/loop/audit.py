"""Audits: decode the same prompts with the same noise, with the decoder's shortcuts and without them.

A cache, early ends, certainty and FP8 weights are approximations. In every collection of rollouts a few
prompts are decoded both ways; past a limit the run continues without shortcuts.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dtm.config import AuditConfig
from dtm.engine import RolloutEngine
from dtm.engine.collect import Collector
from dtm.evaluation.length import effective_lengths
from dtm.random import stream
from dtm.records import Prompts


@dataclass(frozen=True, slots=True)
class Tally:
    """Sums over compared rows; sums of several audits can be added."""

    rows: int = 0
    agreed: float = 0.0
    """Σ s, where s is the share of equal tokens."""
    agreed_squared: float = 0.0
    """Σ s²."""
    shift: float = 0.0
    """Σ d, where d is the reward with shortcuts minus the reward without them."""
    squared: float = 0.0
    """Σ d²."""

    def __add__(self, other: Tally) -> Tally:
        sums = {name: value + getattr(other, name) for name, value in asdict(self).items()}
        return Tally(**sums)

    @property
    def agreement(self) -> float:
        """Mean share of equal tokens."""
        return self.agreed / self.rows

    @property
    def mean_shift(self) -> float:
        """Mean of d."""
        return self.shift / self.rows

    @property
    def error(self) -> float:
        """Standard error of the mean of d."""
        return self._error(self.shift, self.squared)

    def _error(self, total: float, squared: float) -> float:
        """Standard error of a mean from its sums; infinite for a single row."""
        if self.rows < 2:
            return math.inf
        spread = max(squared - total**2 / self.rows, 0.0)
        return math.sqrt(spread / (self.rows - 1) / self.rows)

    def numbers(self) -> dict[str, Any]:
        """Return the means that an event reports."""
        return {
            "rows": self.rows,
            "agreement": self.agreement,
            "reward_shift": self.mean_shift,
            "error": self.error,
        }

    def beyond(self, limits: AuditConfig) -> str | None:
        """Describe the limit that is exceeded by more than two standard errors; None if none is.

        >>> Tally(rows=4, agreed=3.0, agreed_squared=2.25).beyond(AuditConfig(agreement=0.8))
        'only 75.0% of the tokens agree with exact decoding, less than audit.agreement 80.0%'
        """
        doubt = 2 * self._error(self.agreed, self.agreed_squared) if limits.agreement < 1 else 0.0
        if self.agreement + doubt < limits.agreement:  # with a limit of 1, a single different token is enough
            return (
                f"only {self.agreement:.1%} of the tokens agree with exact decoding, "
                f"less than audit.agreement {limits.agreement:.1%}"
            )
        if limits.shift is not None and abs(self.mean_shift) - 2 * self.error > limits.shift:
            return (
                f"the mean reward differs from that of exact decoding by {self.mean_shift:+.3g} ± "
                f"{self.error:.2g}, more than audit.shift {limits.shift:g}"
            )
        return None


def audit(collector: Collector, exact: RolloutEngine, prompts: Prompts, rows: int, seed: int) -> Tally:
    """Decode ``rows`` random prompts with the collector's engine and with the exact one, and compare.

    Both engines have loaded the same model, the first one in FP8 if it decodes in FP8. Rows without a reward
    count only for the agreement of tokens.
    """
    order = torch.randperm(len(prompts), generator=stream(seed, "audited rows"))[:rows]
    asked = prompts.select(order.tolist())
    short, long = (
        replace(collector, engine=engine).draw(asked, 1, seed) for engine in (collector.engine, exact)
    )
    rewards = zip(short.scores.rewards, long.scores.rewards, strict=True)
    shifts = [a - b if a is not None and b is not None else 0.0 for a, b in rewards]
    length = collector.task.completion_length
    tokens, expected = (drawn.finished.written[:, :length] for drawn in (short, long))
    shares = agreement(tokens, expected, collector.task.eos_id).double()
    return Tally(
        len(asked),
        float(shares.sum()),
        float(shares.square().sum()),
        sum(shifts),
        sum(shift**2 for shift in shifts),
    )


def agreement(short: Int[Tensor, "N C"], exact: Int[Tensor, "N C"], eos_id: int) -> Float[Tensor, " N"]:
    """Return the share of equal tokens up to and including the end token of the exact completion."""
    ends = effective_lengths(exact, eos_id)[:, None]
    counted = torch.arange(exact.shape[1], device=exact.device) <= ends
    return ((short == exact) & counted).sum(1) / counted.sum(1)
