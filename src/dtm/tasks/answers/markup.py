r"""Find tags and boxes in generated text, each in one pass over the text.

Generations are long, may end anywhere, and may have many unclosed ``\boxed{``; patterns that try every
opening brace with every closing one would take minutes on them.
"""

from __future__ import annotations

import re

OPEN, CLOSE = "<answer>", "</answer>"
SPECIALS = ("<|eot_id|>", "<|endoftext|>")
BOX = r"\boxed"
BRACE = re.compile(r"\\.|[{}]", re.DOTALL)


def first_pair(text: str) -> str | None:
    """Return the text between the first answer tag and the next closing tag."""
    opening = text.find(OPEN)
    closing = text.find(CLOSE, opening + len(OPEN))
    return None if opening < 0 or closing < 0 else text[opening + len(OPEN) : closing]


def last_pair(text: str) -> str | None:
    """Return the last of the answer pairs found from the left, none inside another."""
    found, place = None, 0
    while (opening := text.find(OPEN, place)) >= 0:
        opening += len(OPEN)
        closing = text.find(CLOSE, opening)
        if closing < 0:
            break
        found, place = text[opening:closing], closing + len(CLOSE)
    return found


def last_answer(text: str) -> str | None:
    """Return the last answer block; an unclosed one extends to the end of the text."""
    opening = text.rfind(OPEN)
    return None if opening < 0 else text[opening + len(OPEN) :].split(CLOSE, 1)[0]


def without_specials(text: str) -> str:
    """Return the text up to the first end-of-turn or end-of-text token."""
    ends = [end for token in SPECIALS if (end := text.find(token)) >= 0]
    return text[: min(ends)] if ends else text


def balanced_boxes(text: str) -> list[tuple[int, int]]:
    r"""Return where the contents of ``\boxed{…}`` begin and end, in order, for those that are closed.

    Escaped braces do not count. Positions and not texts, since those of nested boxes take quadratic memory.
    """
    spans, openings = [], []
    for brace in BRACE.finditer(text):
        if brace.group() == "{":
            openings.append(brace.start())
        elif brace.group() == "}" and openings:
            opening = openings.pop()
            if text.endswith(BOX, 0, opening):
                spans.append((opening + 1, brace.start()))
    return sorted(spans)


def last_box(text: str) -> str | None:
    """Return the contents of the last closed box."""
    spans = balanced_boxes(text)
    return text[slice(*spans[-1])] if spans else None


def published_box(text: str) -> str | None:
    r"""The last box as the published graders read it: the whole text without one, None if it is not closed.

    ``\boxed x`` anywhere in the text goes before ``\boxed{x}`` and runs to the next dollar sign; ``\fbox``
    is a fallback that keeps its wrapping; escaped braces count.
    """
    spaced = text.rfind(BOX + " ")
    if spaced >= 0:
        return text[spaced + len(BOX) + 1 :].split("$", 1)[0]
    start = text.rfind(BOX)
    if start < 0:
        start = text.rfind(r"\fbox")
    if start < 0:
        return text
    depth = 0
    for brace in re.finditer("[{}]", text[start:]):
        depth += 1 if brace.group() == "{" else -1
        if depth == 0 and brace.group() == "}":
            box = text[start : start + brace.end()]
            return box[len(BOX) + 1 : -1] if box.startswith(BOX + "{") else box
    return None
