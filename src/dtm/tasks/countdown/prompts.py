"""Prompts of Countdown."""

from __future__ import annotations

from dtm.tasks.countdown.items import CountdownItem
from dtm.tasks.protocols import FORMAT_BLOCK, Protocol, Stage

TASK = """
Using only the numbers {numbers} create an arithmetic expression that evaluates to exactly {target}. \
You must use all numbers from the list, and each number must be used exactly once. \
You may use the operations +, -, *, and / as needed. \
After reasoning, provide only your final expression inside <answer></answer> tags \
without including an equals sign or the target number.
For example, if the numbers are [2, 3, 4] and the target is 5, a valid answer is:
<answer>
2*4-3
</answer>"""

BOXED_RULES = r"""Find an arithmetic expression whose value is exactly the target number.

Rules:
- Every given number occurs exactly once, and no other number does
- The operations are +, -, * and /, with brackets where they are needed
- The last line is the expression alone, inside \boxed{}, without an equals sign

Respond in the following format:
<reasoning>
Your reasoning here
</reasoning>
<answer>
\boxed{...}
</answer>"""
"""Prompt of SPG's and d1's evaluation, which requires a box: their layout in our words."""


def prompt(item: CountdownItem, protocol: Protocol = "dtm", stage: Stage = "training") -> str:
    """Return the user's message for one item."""
    if protocol != "dtm" and stage == "evaluation":
        return f"{BOXED_RULES}\n\n{question(item)}"
    return FORMAT_BLOCK + TASK.format(numbers=list(item.numbers), target=item.target)


def question(item: CountdownItem) -> str:
    """Return the item in the format of graded files."""
    return f"Numbers: {list(item.numbers)}\nTarget: {item.target}"
