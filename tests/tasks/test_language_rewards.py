"""Rewards of the language tasks, by the worked numbers of the papers and the codes."""

from __future__ import annotations

import pytest

from dtm.tasks.countdown import reward as countdown
from dtm.tasks.gsm8k import reward as gsm8k
from dtm.tasks.math500 import reward as math500
from dtm.tasks.sudoku import reward as sudoku


@pytest.mark.parametrize(
    ("text", "paper", "released"),
    [
        ("<answer>92-52+38</answer>", 1.0, 1.0),
        ("<answer>1</answer> <answer>\n92 - 52 + 38\n</answer>", 1.0, 1.0),  # the last pair
        ("<answer>92-52-38</answer>", 0.1, 0.1),
        ("<answer>92-52+39</answer>", 0.0, 0.1),  # wrong numbers: where paper and code part ways
        ("<answer></answer>", 0.0, 0.1),
        ("<answer>92-52+38=78</answer>", 0.0, 0.1),
        (r"\boxed{92-52+38}", 0.0, 0.0),
        ("<answer>92-52+38", 0.0, 0.0),
        ("<answer>38**92**52</answer>", 0.1, 0.1),
    ],
)
def test_countdown(text, paper, released):
    columns = {"numbers": [[38, 92, 52]], "target": [78]}
    assert countdown.reward(["p"], [text], **columns) == [paper]
    assert countdown.released(["p"], [text], **columns) == [released]
    assert countdown.spg(["p"], [text], **columns) == [released]


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("<answer>3214142323414132</answer>", 1.0),
        ("<answer>[3214 1423 2341 4132]</answer>", 1.0),
        ("<answer>3214 1423</answer>", 0.5),
        ("<answer>32141423234141321111</answer>", 1.0),
        ("<answer>0000000000000000</answer>", 0.0),
        ("<answer></answer>", 0.0),
        ("3214142323414132", 0.0),
    ],
)
def test_sudoku_pays_for_empty_cells(text, share):
    columns = {"puzzle": ["3014002020004130"], "solution": ["3214142323414132"]}
    assert sudoku.reward(["p"], [text], **columns) == [2 * share]
    assert sudoku.released(["p"], [text], **columns) == [2 * share]
    assert sudoku.spg(["p"], [text], **columns) == [share]


@pytest.mark.parametrize(
    ("text", "paper", "spg", "spg_text"),
    [
        (r"<answer>\boxed{\dfrac12}</answer>", 1.375, 2.75, 3.0),
        (r"<answer>\boxed{3}</answer>", -0.625, 0.75, 1.0),
        (r"<answer>\frac12</answer>", -0.75, 0.75, 0.75),
        (r"\boxed{\frac12}", 1.125, 2.25, 2.5),
        (r"<answer>half</answer> \boxed{1/2}", 1.25, 2.75, 2.75),
        ("nothing", -1.0, 0.25, 0.25),
    ],
)
def test_math(text, paper, spg, spg_text):
    gold = [r"\frac{1}{2}"]
    assert math500.reward(["p"], [text], answer=gold) == [paper]
    assert math500.spg(["p"], [text], answer=gold) == [spg]
    assert math500.spg_text(["p"], [text], answer=gold) == [spg_text]


WELL_FORMED = "<reasoning>\nso\n</reasoning>\n<answer>\n{}\n</answer>"


@pytest.mark.parametrize(
    ("text", "gold", "paper"),
    [
        (WELL_FORMED.format(r"\boxed{18}"), "18", 2.5),
        (WELL_FORMED.format(r"\boxed{1,000}"), "1,000", 2.5),
        (WELL_FORMED.format(r"\boxed{-5}"), "-5", 2.5),
        (WELL_FORMED.format(r"\boxed{19}"), "18", 0.5),
        (WELL_FORMED.format(r"\boxed{18.5}"), "18", 0.0),
        (WELL_FORMED.format("18"), "18", 0.0),
        (WELL_FORMED.format(r"\boxed{18}") + "\n" + "x" * 100, "18", 2.4),
        (r"\boxed{18}", "18", 2.0),
        ("", "18", -0.5),
    ],
)
def test_gsm8k_paper(text, gold, paper):
    assert gsm8k.reward(["p"], [text], answer=[gold]) == [pytest.approx(paper)]
    low, high = gsm8k.reward_range(len(text))
    assert low <= paper <= high


def test_gsm8k_without_a_gold_answer_skips_the_sample():
    assert gsm8k.reward(["p", "p"], ["", r"\boxed{1}"], answer=[None, 1]) == [None, 2.0]


@pytest.mark.parametrize(
    ("text", "spg", "d1"),
    [
        # +2, +0.5 integer, four tags, +0.5 strict form; SPG charges the 13 characters of "18\n</answer>\n".
        (WELL_FORMED.format("18") + "\n", 3.5 - 0.013, 3.5),
        # Without the newline d1 charges all 49 characters; both gain the one that "minus one" gives back.
        (WELL_FORMED.format("18"), 3.0 - 0.012 + 0.001, 3.0 - 0.049 + 0.001),
        ("18", 2.5, 2.5),
        ("<reasoning>a</reasoning> <answer>18</answer>", 3.0, 3.0),  # soft format, no tag with its newline
    ],
)
def test_gsm8k_as_spg_and_d1_ran_it(text, spg, d1):
    assert gsm8k.spg(["p"], [text], answer=["18"]) == [pytest.approx(spg)]
    assert gsm8k.d1(["p"], [text], answer=["18"]) == [pytest.approx(d1)]


def test_gsm8k_as_published_wants_the_very_string():
    text = "<answer>1000</answer>"
    assert gsm8k.spg(["p"], [text], answer=["1,000"]) == [pytest.approx(0.5)]
    assert gsm8k.spg(["p"], ["<answer>-5</answer>"], answer=["-5"]) == [pytest.approx(2.0)]  # no digit bonus
