r"""GSM8K: one number.

The published rules take the first box with a number (its first number, so that "1,000" is 1), else the last
number of the first answer pair. SPG, and DTM's table after it, also try the text after the last answer tag,
or the whole text without a tag. They drop the minus sign of a gold answer. ``fixed`` has SPG's order, reads
separators, signs and fractions, and compares exactly.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

from dtm.errors import DataError
from dtm.tasks.answers.markup import CLOSE, OPEN, balanced_boxes, first_pair, without_specials
from dtm.tasks.answers.quantities import exact, number_in
from dtm.tasks.answers.verdict import Rules, Verdict

PUBLISHED_NUMBER = re.compile(r"-?\d+\.?\d*")
PUBLISHED_GOLD = re.compile(r"####\s*\$?([0-9][0-9.,]*)")
BOX = r"\boxed{"
MAX_NUMBER = 400
"""Longest number, in characters; a longer one is infinite as a float."""


def grade(question: str, ground_truth: Any, generation: str, rules: Rules) -> Verdict:
    """Judge one generation; the ground truth is a number, or the data set's answer that ends in "#### 18".

    The published parser reads a negative gold answer as null, which is never right under the published rules;
    ``fixed`` does not judge such a row.
    """
    if rules == "fixed":
        gold, value = gold_number(ground_truth), _fixed(without_specials(generation))
        return Verdict(None if value is None else _float(value), None if gold is None else value == gold)
    found = _published(generation, tail=rules != "d1")
    return Verdict(found, found is not None and found == _published_gold(ground_truth))


def gold_number(ground_truth: Any) -> Fraction | None:
    """Return the exact gold answer, with its sign; None for null."""
    match ground_truth:
        case None:
            return None
        case int() | float() if abs(ground_truth) < float("inf"):
            return Fraction(ground_truth)
        case str() if (value := exact(ground_truth.rpartition("####")[2])) is not None:
            return value
    raise DataError(
        f"ground_truth must be a number, or text that ends in '#### number'; got {str(ground_truth)[:80]!r}"
    )


def _published_gold(ground_truth: Any) -> float | None:
    if isinstance(ground_truth, str) and "####" in ground_truth:
        found = PUBLISHED_GOLD.search(ground_truth)
        return _as_float(found.group(1).replace(",", "")) if found else None
    gold = gold_number(ground_truth)
    return None if gold is None else _float(gold)


def _published(text: str, tail: bool) -> float | None:
    for box in _boxes(text):
        content = box.strip()
        if content.strip(".") and (found := _number(content, first=True)) is not None:
            return found
    pair = first_pair(text)
    found = None if pair is None else _number(pair.strip(), first=False)
    if found is None and tail:
        return _number(text.rpartition(OPEN)[2].split(CLOSE, 1)[0].strip(), first=False)
    return found


def _boxes(text: str) -> Iterator[str]:
    """Return the boxes, each up to the next closing brace on its line."""
    for line in text.split("\n"):
        opening = line.find(BOX)
        while opening >= 0:
            closing = line.find("}", opening)
            if closing < 0:
                break
            yield line[opening + len(BOX) : closing]
            opening = line.find(BOX, closing)


def _number(text: str, first: bool) -> float | None:
    whole = _as_float(text)
    if whole is not None:
        return whole
    found = PUBLISHED_NUMBER.findall(text)
    return _as_float(found[0 if first else -1]) if found else None


def _as_float(text: str) -> float | None:
    try:
        return float(text) if len(text) <= MAX_NUMBER else None
    except ValueError:
        return None


def _fixed(text: str) -> Fraction | None:
    for start, end in balanced_boxes(text):
        if end - start > MAX_NUMBER:
            continue
        whole = exact(text[start:end])
        found = number_in(text[start:end], first=True) if whole is None else whole
        if found is not None:
            return found
    for place in (first_pair(text), text.rpartition(OPEN)[2].split(CLOSE, 1)[0]):
        if place is not None and (found := number_in(place, first=False)) is not None:
            return found
    return None


def _float(value: Fraction) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
