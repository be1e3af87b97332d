"""Budgets: limit a run's rollouts and updates by wall-clock time, tokens or floating-point operations.

`dtm.loop.ledger` counts the cost. Evaluations, checkpoints and loading cost nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dtm.errors import require

Unit = Literal["seconds", "tokens", "flops"]

UNITS: dict[str, tuple[Unit, float]] = {
    "s": ("seconds", 1.0),
    "m": ("seconds", 60.0),
    "h": ("seconds", 3600.0),
    "tokens": ("tokens", 1.0),
    "flops": ("flops", 1.0),
}
"""Suffix of a budget → its unit and factor."""
SPENT = ("spent_seconds", "spent_tokens", "spent_flops")
"""Cost fields of every event."""
COOLING = 0.1
"""Last share of a budget, in which the learning rate of every method falls to zero."""
MEASURED = 0.1
"""Share of a budget between evaluations; an evaluation waits for the end of a phase."""


@dataclass(frozen=True, slots=True)
class Budget:
    """A limit on the cost of a run, in one unit."""

    text: str
    """The text that it was parsed from."""
    unit: Unit
    amount: float

    @classmethod
    def parse(cls, text: str) -> Budget:
        """Parse a text such as ``90s``, ``5m``, ``1.5h``, ``1e8tokens`` or ``2e15flops``.

        >>> Budget.parse("5m").amount, Budget.parse("1e8tokens").unit
        (300.0, 'tokens')
        """
        found = re.fullmatch(r"(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?\s*([a-z]+)", text.strip())
        known = found is not None and found[3] in UNITS
        require(
            known,
            f"budget: {text!r} is not an amount of work. Write a number and a unit: 90s, 5m or 1.5h of "
            "wall-clock, 1e8tokens, or 2e15flops",
        )
        assert found is not None
        unit, size = UNITS[found[3]]
        amount = size * float(found[1] + (found[2] or ""))
        require(0 < amount < math.inf, f"budget: {text!r} must be a positive, finite amount")
        return cls(text, unit, amount)

    def share(self, spent: Mapping[str, Any]) -> float:
        """Return the spent share of the budget, above 1 if exceeded; ``spent`` has an event's cost fields."""
        return float(spent[f"spent_{self.unit}"]) / self.amount


def cooling_factor(share: float) -> float:
    """Return the factor on the learning rate when ``share`` of the budget is spent.

    It falls to zero at the end, so that no method is measured with the noise of its last steps.
    """
    return min(1.0, max(0.0, (1 - share) / COOLING))
