"""Parse numbers in running text, such as "$1,000", "-5", "1{,}000", "1/2"."""

from __future__ import annotations

import re
from fractions import Fraction

from dtm.tasks.arithmetic import MAX_DIGITS, evaluate

SEPARATORS = ("{,}", r",\!", r"\,", r"\!")
NOISE = (r"\$", "$", r"\%", "%", r"\left", r"\right", r"\(", r"\)")
THOUSANDS = re.compile(r"(?<=[0-9]),(?=[0-9]{3}(?![0-9]))")
FRACTION = re.compile(r"\\[dt]?frac\{([^{}]*)\}\{([^{}]*)\}")
NUMBER = re.compile(r"(?<![0-9.])-?(?:[0-9]+(?:\.[0-9]+)?|\.[0-9]+)")


def plain(text: str) -> str:
    """Remove currency signs, thousands separators and typography from a text."""
    for separator in SEPARATORS:
        text = text.replace(separator, ",")
    for noise in NOISE:
        text = text.replace(noise, "")
    text = FRACTION.sub(r"((\1)/(\2))", text.replace("−", "-"))
    return THOUSANDS.sub("", text).strip()


def exact(text: str) -> Fraction | None:
    r"""Return the number if the whole text is one, else None.

    >>> exact("$1,000"), exact(r"\frac{1}{2}"), exact("18 dollars")
    (Fraction(1000, 1), Fraction(1, 2), None)
    """
    return evaluate(plain(text))


def number_in(text: str, first: bool) -> Fraction | None:
    """Return the first or the last number in the text; ignore numbers of too many digits."""
    found = [match for match in NUMBER.findall(plain(text)) if len(match) <= MAX_DIGITS]
    return Fraction(found[0 if first else -1]) if found else None
