r"""Compare two LaTeX answers as strings, after removing differences of notation.

The rules are those published with the MATH data set, which all published numbers use. They accept
``\tfrac12`` and ``1/2`` for ``\frac{1}{2}``, and no algebra. If a rule fails on either answer, both are
compared unchanged, as in the original code.
"""

from __future__ import annotations

import re

REMOVED_FIRST = {
    "\n": "",
    r"\!": "",
    "\\\\": "\\",
    "tfrac": "frac",
    "dfrac": "frac",
    r"\left": "",
    r"\right": "",
}
REMOVED_NEXT = {r"^{\circ}": "", r"^\circ": "", r"\$": ""}
UNIT = r"\text{ "
MAX_INTEGER = 100
"""Longest numerator or denominator of a fraction with a slash, in digits."""


class Malformed(ValueError):
    """An answer to which the rules do not apply."""


def same(answer: str, gold: str) -> bool:
    r"""Return whether two answers agree after normalisation.

    >>> same(r"x = \dfrac12", "1/2"), same("0.50", "1/2")
    (True, False)
    """
    try:
        return normalised(answer) == normalised(gold)
    except Malformed:
        return answer == gold


def normalised(text: str) -> str:
    """Return the answer in a normal form; raise `Malformed` for two units or an unfinished command."""
    for old, new in {**REMOVED_FIRST, **REMOVED_NEXT}.items():
        text = text.replace(old, new)
    text = _without_unit(text).replace(r"\%", "").replace(" .", " 0.").replace("{.", "{0.")
    if text.startswith("."):
        text = "0" + text
    text = _without_name(text)
    text = _braced_roots(text).replace(" ", "")
    text = _braced_fractions(text)
    return _slash_as_fraction(r"\frac{1}{2}" if text == "0.5" else text)


def _without_unit(text: str) -> str:
    kept, *units = text.split(UNIT)
    if len(units) > 1:
        raise Malformed(f"{len(units)} units")
    return kept


def _without_name(text: str) -> str:
    """Return the part after a short ``x =``."""
    sides = text.split("=")
    return sides[1] if len(sides) == 2 and len(sides[0]) <= 2 else text


def _braced_roots(text: str) -> str:
    head, *rest = text.split(r"\sqrt")
    if "" in rest:
        raise Malformed("a root of nothing")
    return head + "".join(
        r"\sqrt" + (part if part[0] == "{" else f"{{{part[0]}}}{part[1:]}") for part in rest
    )


def _braced_fractions(text: str) -> str:
    r"""``\frac12`` and ``\frac1{2}`` with both arguments in braces; as it stands where one has but one."""
    head, *rest = text.split(r"\frac")
    done = [head]
    for part in rest:
        if part == "":
            raise Malformed("a fraction of nothing")
        if part[0] == "{":
            done.append(part)
        elif len(part) == 1:
            return text
        else:
            below = part[1:] if part[1] == "{" else f"{{{part[1]}}}{part[2:]}"
            done.append(f"{{{part[0]}}}{below}")
    return r"\frac".join(done)


def _slash_as_fraction(text: str) -> str:
    """Write an integer over an integer as a fraction; any other single slash is `Malformed`."""
    if text.count("/") != 1:
        return text
    above, below = text.split("/")
    if not (_is_integer(above) and _is_integer(below)):
        raise Malformed("a slash between what are not integers")
    plain = all(re.fullmatch("0|-?[1-9][0-9]*", side) for side in (above, below))
    return rf"\frac{{{above}}}{{{below}}}" if plain else text


def _is_integer(text: str) -> bool:
    """Return whether ``int`` accepts a text, up to a length: signs, spaces around it and leading zeros."""
    return len(text) <= MAX_INTEGER and re.fullmatch(r"[-+]?[0-9]+(_[0-9]+)*", text.strip()) is not None
