"""Exact arithmetic on text: right where Python is right, and an answer after bounded work for all else."""

from __future__ import annotations

import sys
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtm.tasks import arithmetic
from dtm.tasks.arithmetic import MAX_CHARACTERS, MAX_DIGITS, MAX_NESTING, NotArithmetic, evaluate, value_of

NUMBERS = st.integers(0, 999).map(str)
EXPRESSIONS = st.recursive(
    NUMBERS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from(["+", "-", "*", "/", " + ", "  *\n"]), inner).map("".join),
        inner.map(lambda text: f"({text})"),
        inner.map(lambda text: f"-{text}"),
    ),
    max_leaves=12,
)


def python_value(text: str) -> Fraction | None:
    """What Python makes of it when every number is a fraction; ``text`` comes from our own strategy."""
    import re

    try:
        return eval(re.sub(r"(\d+)", r"Fraction(\1)", f"({text})"))
    except ZeroDivisionError:
        return None


@given(EXPRESSIONS)
def test_an_expression_has_the_value_that_python_gives_it_in_fractions(text):
    assert evaluate(text) == python_value(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("38 + 92 - 52", 78),
        ("2*4-3", 5),
        ("1/3*3", 1),
        ("-(2+3)*-2", 10),
        ("--5", 5),
        ("1.5 * .5", Fraction(3, 4)),
        ("5.", 5),
        ("007", 7),
        ("0.1 + 0.2 - 0.3", 0),
    ],
)
def test_a_value_is_exact(text, value):
    assert evaluate(text) == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("99**87**75", "'*' where a number"),
        ("7//2", "'/' where a number"),
        ("1/0", "division by zero"),
        ("1/(2-2)", "division by zero"),
        ("", "empty"),
        ("   ", "empty"),
        ("٣+4", "is not a number"),
        ("²", "is not a number"),
        ("2(3)", "where an operator"),
        ("(1", "never closed"),
        ("1)", "where an operator"),
        ("()", "')' where a number"),
        ("1+", "'the end' where a number"),
        ("__import__('os')", "is not a number"),
        ("1e9", "is not a number"),
        ("\0", "is not a number"),
        ("1" * (MAX_DIGITS + 1), "digits"),
        ("(" * (MAX_NESTING + 1) + "1" + ")" * (MAX_NESTING + 1), "nested"),
        ("(" * 10_000 + "1" + ")" * 10_000, "characters"),
        ("1+" * MAX_CHARACTERS + "1", "characters"),
    ],
)
def test_what_has_no_value_says_why(text, reason):
    assert evaluate(text) is None
    with pytest.raises(
        NotArithmetic, match=reason.replace("(", r"\(").replace(")", r"\)").replace("*", r"\*")
    ):
        value_of(text)


@pytest.mark.parametrize(
    "text",
    [
        "99**87**75",
        "1/0",
        "(" * 10_000,
        "9" * 10**6,
        "-" * 999 + "1",
        "1+" * 10**5 + "1",
        "9*" * 499 + "9",
        f"{'9' * 50}*" * 19 + "9",
    ],
)
def test_work_and_result_are_bounded_whatever_the_text(text):
    calls = 0

    def count(frame, event, argument):
        nonlocal calls
        calls += event == "call" and frame.f_code.co_filename == arithmetic.__file__

    sys.setprofile(count)
    try:
        value = evaluate(text)
    finally:
        sys.setprofile(None)
    assert calls <= 10 * MAX_CHARACTERS
    assert value is None or len(str(value)) <= MAX_CHARACTERS


@given(st.text(alphabet="0123456789+-*/(). \n", max_size=80))
def test_no_text_raises(text):
    assert evaluate(text) is None or isinstance(evaluate(text), Fraction)
