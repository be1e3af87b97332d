"""Published protocols of prompts; their texts are part of the protocol and must not be edited.

DTM has the same prompts in training and in evaluation, word for word as in its paper. SPG, and d1 before it,
have different ones. Their layout is kept here, with the paper's words if it has the same text, else our own.
Chat templates trim a message, so white space at its ends does not matter.
"""

from __future__ import annotations

from typing import Literal

Protocol = Literal["dtm", "spg", "d1"]
Stage = Literal["training", "evaluation"]

FORMAT_BLOCK = """
Respond in the following format:
<reasoning>
...
</reasoning>
<answer>
...
</answer>
"""

MATH_EXPERT = (
    "You are a math expert. You will be given a question to solve. Solve it step by step. "
    r"Wrap the final answer in a \boxed{}."
)

MATH_TEMPLATE = rf"""{MATH_EXPERT}
Respond in the following format:
<reasoning>
Your reasoning here
</reasoning>
<answer>
\boxed{{...}}
</answer>"""


def prefill(protocol: Protocol, stage: Stage) -> str:
    """Return the start of the completion: d1 and SPG evaluate from inside the reasoning tag."""
    return "" if protocol == "dtm" or stage == "training" else "<reasoning>"
