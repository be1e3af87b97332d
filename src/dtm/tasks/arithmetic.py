"""Evaluate arithmetic in a model's text exactly: + - * / and brackets, with fractions.

`eval` would also take ``99**87**75``, which does not end; here a power is not part of the language, and
length, nesting and digits are bounded, so that every text is answered at once.
"""

from __future__ import annotations

import re
from fractions import Fraction

MAX_CHARACTERS = 1_000
MAX_NESTING = 50
MAX_DIGITS = 50
"""Longest number, in digits. Together with the length of a text it bounds the size of every result."""

TOKEN = re.compile(r"[ \t\r\n]*(?:([0-9]+\.?[0-9]*|\.[0-9]+)|([-+*/()]))")


class NotArithmetic(ValueError):
    """A text without a value; the message says why."""


def evaluate(text: str) -> Fraction | None:
    """Return the value of an expression, or None if it has none.

    >>> evaluate("(38 - 52) / 4")
    Fraction(-7, 2)
    >>> evaluate("99**87**75") is None
    True
    """
    try:
        return value_of(text)
    except NotArithmetic:
        return None


def value_of(text: str) -> Fraction:
    """Return the value of an expression; raise `NotArithmetic` with the reason if it has none."""
    if len(text) > MAX_CHARACTERS:
        raise NotArithmetic(f"longer than {MAX_CHARACTERS} characters")
    return _Reader(_tokens(text)).whole()


def _tokens(text: str) -> list[str]:
    text = text.rstrip(" \t\r\n")
    tokens, place = [], 0
    while place < len(text):
        found = TOKEN.match(text, place)
        if found is None:
            raise NotArithmetic(f"{text[place]!r} is not a number, an operator or a bracket")
        number, symbol = found.groups()
        if number and len(number) > MAX_DIGITS:
            raise NotArithmetic(f"a number of more than {MAX_DIGITS} digits")
        tokens.append(number or symbol)
        place = found.end()
    return tokens


class _Reader:
    """Recursive-descent parser, one call deep per open bracket: sum → product → factor → sum."""

    def __init__(self, tokens: list[str]) -> None:
        self.tokens = tokens
        self.place = 0
        self.nesting = 0

    def whole(self) -> Fraction:
        if not self.tokens:
            raise NotArithmetic("empty")
        value = self.sum()
        if self.place < len(self.tokens):
            raise NotArithmetic(f"{self.next()!r} where an operator or the end was expected")
        return value

    def sum(self) -> Fraction:
        value = self.product()
        while self.peek() in ("+", "-"):
            value = value + self.product() if self.next() == "+" else value - self.product()
        return value

    def product(self) -> Fraction:
        value = self.factor()
        while self.peek() in ("*", "/"):
            operator, factor = self.next(), self.factor()
            if operator == "/" and factor == 0:
                raise NotArithmetic("a division by zero")
            value = value * factor if operator == "*" else value / factor
        return value

    def factor(self) -> Fraction:
        sign = 1
        while self.peek() in ("+", "-"):
            sign = sign if self.next() == "+" else -sign
        token = self.next()
        if token == "(":
            return sign * self.bracket()
        if token in ("*", "/", ")", ""):
            raise NotArithmetic(f"{token or 'the end'!r} where a number or a bracket was expected")
        return sign * Fraction(token)

    def bracket(self) -> Fraction:
        self.nesting += 1
        if self.nesting > MAX_NESTING:
            raise NotArithmetic(f"brackets nested more than {MAX_NESTING} deep")
        value = self.sum()
        if self.next() != ")":
            raise NotArithmetic("a bracket that is never closed")
        self.nesting -= 1
        return value

    def peek(self) -> str:
        return self.tokens[self.place] if self.place < len(self.tokens) else ""

    def next(self) -> str:
        token = self.peek()
        self.place += 1
        return token
