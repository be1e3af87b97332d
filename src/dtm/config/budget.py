"""How much work a run may spend: wall-clock, tokens or floating-point operations of its rollouts and updates.

`dtm.loop.ledger` defines what counts. Evaluations, checkpoints and loading are not part of it.
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
"""Share of a budget over which the learning rate falls to zero at its end, for every method."""
MEASURED = 0.1
"""Share of a budget from one evaluation to the next; the evaluation itself waits for a phase's end."""


@dataclass(frozen=True, slots=True)
class Budget:
    """An amount of one unit."""

    text: str
    """As it was written."""
    unit: Unit
    amount: float

    @classmethod
    def parse(cls, text: str) -> Budget:
        """``90s``, ``5m``, ``1.5h``, ``1e8tokens`` or ``2e15flops``.

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
        """The spent share of the budget; above 1 if exceeded. ``spent`` has the cost fields of an event."""
        return float(spent[f"spent_{self.unit}"]) / self.amount


def cooling_factor(share: float) -> float:
    """The learning rate as a fraction of what it would be without a budget, ``share`` of which is spent.

    No method is then judged by the noise of its last steps.
    """
    return min(1.0, max(0.0, (1 - share) / COOLING))
