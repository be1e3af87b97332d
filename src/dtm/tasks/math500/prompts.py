"""Prompts of MATH."""

from __future__ import annotations

from dtm.tasks.math500.items import MathItem
from dtm.tasks.protocols import FORMAT_BLOCK, MATH_EXPERT, MATH_TEMPLATE, Protocol, Stage

STRAY = '" \n'
"""Quotation mark at the end of SPG's and d1's evaluation template, which is part of their protocol."""


def prompt(item: MathItem, protocol: Protocol = "dtm", stage: Stage = "training") -> str:
    """Return the user's message for one item."""
    if protocol == "dtm":
        return f"{MATH_TEMPLATE}\n\n{item.problem}"
    if stage == "training":
        return f"{FORMAT_BLOCK}\n{MATH_EXPERT} \n\n{item.problem}"
    return f"{MATH_TEMPLATE}{STRAY}\n{item.problem}"
