r"""MATH500: a LaTeX answer in a box.

The published rules (all three are equal) take the last box, else the whole text; if the box is empty or not
closed, the first answer pair. They compare strings (`latex`). ``fixed`` takes the last closed box, else the
answer block, never the whole text, and also accepts mathematically equal answers (`symbolic`, which needs the
optional extra "math").
"""

from __future__ import annotations

from typing import Any

from dtm.errors import DataError, require
from dtm.tasks.answers import latex, symbolic
from dtm.tasks.answers.markup import first_pair, last_answer, last_box, published_box, without_specials
from dtm.tasks.answers.verdict import Rules, Verdict


def grade(question: str, ground_truth: Any, generation: str, rules: Rules) -> Verdict:
    """Judge one generation; the ground truth is the gold answer in LaTeX, without its box."""
    require(
        isinstance(ground_truth, str),
        f"ground_truth must be the gold answer as text, got {str(ground_truth)[:80]!r}",
        DataError,
    )
    if rules == "fixed":
        symbolic.require_installed()
        answer = _fixed(without_specials(generation))
        equal = answer is not None and _equal(answer, ground_truth)
        return Verdict(answer, bool(equal), undecided=equal is None)
    answer = _published(generation)
    return Verdict(answer, answer is not None and latex.same(answer, ground_truth))


def _published(text: str) -> str | None:
    box = published_box(text)
    if box:
        return box
    pair = first_pair(text)
    return box if pair is None else pair.strip()


def _fixed(text: str) -> str | None:
    answer = last_box(text) or last_answer(text)
    return answer.strip().strip("$").removesuffix(".").strip() or None if answer else None


def _equal(answer: str, gold: str) -> bool | None:
    """Return whether the answers are equal; None if computer algebra timed out."""
    return latex.same(answer, gold) or symbolic.equal(answer, gold)
