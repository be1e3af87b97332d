"""Prompts of GSM8K."""

from __future__ import annotations

from dtm.tasks.gsm8k.items import Gsm8kItem
from dtm.tasks.protocols import FORMAT_BLOCK, MATH_TEMPLATE, Protocol, Stage


def prompt(item: Gsm8kItem, protocol: Protocol = "dtm", stage: Stage = "training") -> str:
    """Return the user's message for one item; d1 and SPG do not require a box in training."""
    head = FORMAT_BLOCK if protocol != "dtm" and stage == "training" else f"{MATH_TEMPLATE}\n"
    return f"{head}\n{item.question}"
