r"""Rewards for GSM8K: `reward` is the paper's, `spg` and `d1` are those of published code.

The paper reads the box; the other two compare the text of the answer block with the gold string, commas
included. All count the four tags; they differ in the penalty for text after the end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from dtm.tasks.answers.gsm8k import gold_number
from dtm.tasks.answers.markup import CLOSE, OPEN, last_box
from dtm.tasks.answers.quantities import exact

TAG, CHARACTER = 0.125, 0.001
TAGS = ("<reasoning>\n", "\n</reasoning>\n", "\n<answer>\n", "\n</answer>")
STRICT = re.compile(r"<reasoning>\n[^\n]*\n</reasoning>\n<answer>\n[^\n]*\n</answer>\n\n?")
BETWEEN = re.compile(r"</reasoning>\s*<answer>")


def reward_range(characters: int) -> tuple[float, float]:
    """Return the lowest and the highest reward of a completion of ``characters``."""
    return -0.5 - CHARACTER * characters, 2.5


def reward(
    prompts: Sequence[Any], completions: Sequence[str], answer: Sequence[Any], **columns: Any
) -> list[float | None]:
    """Return +2 for the right number in the box, −0.5 without an integer there, and the tags [Appendix D]."""
    return [_paper(text, gold) for text, gold in zip(completions, answer, strict=True)]


def spg(
    prompts: Sequence[Any], completions: Sequence[str], answer: Sequence[Any], **columns: Any
) -> list[float]:
    """Return SPG's reward: the third tag has a penalty for all text after it, the answer included."""
    return [
        _published(text, str(gold), lambda text: _after(text, "\n<answer>\n"))
        for text, gold in zip(completions, answer, strict=True)
    ]


def d1(
    prompts: Sequence[Any], completions: Sequence[str], answer: Sequence[Any], **columns: Any
) -> list[float]:
    """Return d1's reward: the third tag has a penalty for the whole text unless a newline ends the answer."""
    return [
        _published(text, str(gold), lambda text: _after(text, "\n</answer>\n"))
        for text, gold in zip(completions, answer, strict=True)
    ]


def _paper(text: str, answer: Any) -> float | None:
    gold = gold_number(answer)
    if gold is None:
        return None
    value = exact(last_box(text) or "")
    correct = 2.0 if value == gold else 0.0
    integer = 0.0 if value is not None and value.denominator == 1 else -0.5
    closed = text.count(TAGS[3]) == 1
    return correct + integer + _tags(text) - CHARACTER * (max(0, _after(text, TAGS[3]) - 1) if closed else 0)


def _published(text: str, gold: str, charged: Callable[[str], int]) -> float:
    answer = text.rpartition(OPEN)[2].split(CLOSE, 1)[0].strip()
    correct = 2.0 if answer == gold.rpartition("####")[2].strip() else 0.0
    form = 0.5 * answer.isdigit() + 0.5 * _soft(text) + 0.5 * (STRICT.fullmatch(text) is not None)
    opened, closed = (text.count(tag) == 1 for tag in TAGS[2:])
    excess = (charged(text) if opened else 0) + (_after(text, TAGS[3]) - 1 if closed else 0)
    return correct + form + _tags(text) - CHARACTER * excess


def _tags(text: str) -> float:
    return TAG * sum(text.count(tag) == 1 for tag in TAGS)


def _after(text: str, mark: str) -> int:
    """Count the characters after the last mark; all characters without a mark."""
    return len(text.rpartition(mark)[2])


def _soft(text: str) -> bool:
    """Return whether the text starts with one line each of reasoning and answer, as the published pattern."""
    if not text.startswith("<reasoning>"):
        return False
    first_line, tried = text.find("\n") % (len(text) + 1), -1
    for between in BETWEEN.finditer(text, len("<reasoning>"), len(text)):
        if between.start() > first_line:
            return False
        line = text.find("\n", between.end()) % (len(text) + 1)
        if line != tried and text.find(CLOSE, between.end(), line) >= 0:
            return True
        tried = line
    return False
