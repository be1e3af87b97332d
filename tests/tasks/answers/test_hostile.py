"""Parsers and rewards on texts that nobody means: an answer for each, by work in proportion to its length."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtm.evaluation.grade import GRADERS
from dtm.tasks.answers.verdict import RULES
from dtm.tasks.countdown import reward as countdown
from dtm.tasks.gsm8k import reward as gsm8k
from dtm.tasks.math500 import reward as math500
from dtm.tasks.sudoku import reward as sudoku

SUDOKU = "3014002020004130", "3214142323414132"
ROWS = {
    "countdown": ("", [[38, 92, 52], 78]),
    "sudoku": SUDOKU,
    "gsm8k": ("", 18.0),
    "math500": ("", r"\frac{1}{2}"),
}
# Computer algebra has a deadline of its own and a test of it; here it would only be slow.
CASES = [(task, rules) for task in GRADERS for rules in RULES if (task, rules) != ("math500", "fixed")]
REWARDS = {
    countdown: {"numbers": [[38, 92, 52]], "target": [78]},
    sudoku: {"puzzle": [SUDOKU[0]], "solution": [SUDOKU[1]]},
    gsm8k: {"answer": ["18"]},
    math500: {"answer": [r"\frac{1}{2}"]},
}
NAMES = ("reward", "released", "spg", "spg_text", "d1")
PIECES = st.sampled_from(
    [
        *("<reasoning>", "</reasoning>", "<answer>", "</answer>", "\n", "```", "=", " ", "$", "{", "}", "\\"),
        *(
            r"\boxed{",
            r"\boxed ",
            r"\fbox{",
            r"\frac",
            r"\sqrt",
            r"\text{ ",
            "####",
            "<|eot_id|>",
            "\0",
            "\ud800",
        ),
        *("18", "1,000", "-5", "٣", "92-52+38", "3214142323414132", "nan", "1e999", "**", "/0", "∞", "x"),
    ]
)
TEXTS = st.lists(PIECES, max_size=30).map("".join)
HUGE = {
    "boxes": "\\boxed{" * 20_000,
    "boxes and an end": "\\boxed{" * 20_000 + "}" * 20_000,
    "boxes on lines": "\\boxed{\n" * 20_000 + "}",
    "openings": "<answer>" * 20_000,
    "pairs": "<answer></answer>" * 10_000,
    "one line of tags": "<reasoning>" + "</reasoning><answer>" * 10_000,
    "digits": "1" * 200_000,
    "spaced digits": "1111111111111111 " * 10_000,
    "white space": "1" * 16 + " " * 200_000,
    "equations": "1+" * 50_000 + "=" + "1=" * 50_000,
    "fences": "<answer>" + "```1 " * 40_000,
    "brackets": "\\boxed{" + "(" * 100_000 + "}",
    "fractions": "\\boxed{" + "\\frac{" * 20_000 + "}",
    "commas": "\\boxed{" + "1,111" * 40_000 + "}",
    "roots": "\\boxed{" + "\\sqrt" * 20_000 + "}",
    "noise": "\0\ud800é∞" * 50_000,
}


def rewards(text):
    for module, columns in REWARDS.items():
        for name in NAMES:
            if hasattr(module, name):
                yield from getattr(module, name)(["p"], [text], **columns)


@given(TEXTS)
@settings(max_examples=150, deadline=None)
def test_no_text_breaks_a_parser_or_a_reward(text):
    for task, rules in CASES:
        verdict = GRADERS[task](*ROWS[task], text, rules)
        assert verdict.correct in (True, False)
    for value in rewards(text):
        assert -2 < value < 5


@contextmanager
def work_bound(cpu_seconds: float) -> Iterator[None]:
    """Stop code after so much CPU time of this process, in which waiting for a core does not count."""

    def stop(number, frame):
        raise AssertionError(f"still computing after {cpu_seconds:g} s of CPU time")

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, cpu_seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@pytest.mark.parametrize("kind", HUGE)
def test_the_work_on_a_long_text_is_in_proportion_to_its_length(kind):
    """About a second at the most; a parser that tries each opening with each closing would take minutes."""
    text = 4 * HUGE[kind]
    with work_bound(30):
        for task, rules in CASES:
            assert GRADERS[task](*ROWS[task], text, rules).correct is False
        assert all(value < 2 for value in rewards(text))
