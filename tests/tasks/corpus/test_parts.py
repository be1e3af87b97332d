"""Parts of the corpus: worked answers are right, most careless ones are not, test items never occur."""

from __future__ import annotations

import re
from functools import partial
from itertools import permutations
from random import Random

import pytest

from dtm.tasks.arithmetic import evaluate
from dtm.tasks.corpus import countdown as corpus_countdown
from dtm.tasks.corpus import expressions
from dtm.tasks.corpus import sudoku as corpus_sudoku
from dtm.tasks.corpus.countdown import Arithmetic, Countdown
from dtm.tasks.corpus.gsm8k import GIVEN_UP, Gsm8k
from dtm.tasks.corpus.part import Example, Part, answer_block, pieces, reasoned
from dtm.tasks.corpus.solutions import MARK, SolvedQuestion, renumbered
from dtm.tasks.corpus.sudoku import SYMBOLS, Sudoku, SudokuLines
from dtm.tasks.countdown.items import CountdownItem
from dtm.tasks.countdown.solve import needs
from dtm.tasks.gsm8k.items import Gsm8kItem
from dtm.tasks.gsm8k.reward import TAG
from dtm.tasks.gsm8k.reward import reward as gsm8k_reward
from dtm.tasks.sudoku.exemplars import EXEMPLARS
from dtm.tasks.sudoku.generate import split_solutions
from dtm.tasks.sudoku.grids import completions, is_solution, is_unique, is_valid

SOLUTIONS = split_solutions(seed=0)[0][:40]
SOLVED = SolvedQuestion.of(
    Gsm8kItem("Ann has 3 boxes of 400 pens. How many pens?", "1,200"),
    "There are 3*400=<<3*400=1200>>1,200 pens.\nSo 1,200.\n#### 1,200",
)


def rows(part: Part, count: int, right: float = 1.0, seed: int = 0) -> list[Example]:
    random = Random(seed)
    return [part.draw(random, right) for _ in range(count)]


def item_of(row: Example) -> CountdownItem:
    numbers, target = re.search(r"the numbers \[([\d, ]+)\] .* exactly (\d+)", str(row.prompt)).groups()
    return CountdownItem(tuple(map(int, numbers.split(", "))), int(target))


def inside(row: Example) -> str:
    return re.fullmatch(
        r"(?:<reasoning>\n.*\n</reasoning>\n)?<answer>\n(.*)\n</answer>", row.answer, re.S
    ).group(1)


def are_right(equations: list[str]) -> bool:
    sides = [equation.split("=") for equation in equations]
    return all(evaluate(text) == int(told) for text, told in sides)


def used(text: str) -> list[int]:
    return sorted(map(int, re.findall(r"\d+", text)))


# ── Countdown ────────────────────────────────────────────────────────────────────────────────────


def test_right_answers_to_countdown_reach_the_target_with_the_numbers_given():
    for row in rows(Countdown((), worked=1.0), 300):
        item, text = item_of(row), inside(row)
        assert evaluate(text) == item.target
        assert used(text) == sorted(item.numbers)
        assert row.answer.startswith(f"<reasoning>\n{text}={item.target}\n</reasoning>\n")
        assert all(1 <= number <= 100 for number in item.numbers)
        assert 1 <= item.target <= 100


def test_some_items_need_a_product_or_a_quotient():
    needed = [needs(item_of(row)) for row in rows(Countdown((), worked=1.0), 400)]
    assert needed.count("multiply") / 400 == pytest.approx(corpus_countdown.PRODUCTS, abs=0.03)
    assert needed.count("multiply") + needed.count("add") == 400


def test_the_same_item_always_has_the_same_sum(monkeypatch):
    monkeypatch.setattr(expressions, "NUMBERS", (1, 6))
    solutions = {}
    for seed in range(600):
        solved = expressions.solved_sum(Random(seed))
        assert solutions.setdefault(solved[:2], solved) == solved
    assert len(solutions) < 500  # many items came again
    assert any(len(set(numbers)) < 3 for numbers, _ in solutions)


@pytest.mark.parametrize("shape", expressions.SHAPES, ids=lambda shape: shape.text)
def test_operands_that_may_change_places_keep_the_order_of_the_numbers(shape):
    numbers, operands = (3, 6, 36), {"a": 36, "b": 6, "c": 3}
    texts = set()
    for order in permutations(shape.free):
        swapped = operands | {name: operands[other] for name, other in zip(shape.free, order, strict=True)}
        texts.add(expressions.product_text(shape, tuple(swapped.values()), numbers))
    assert len(texts) == 1


def test_every_item_that_needs_a_product_is_in_the_table_once():
    table = [tuple(row) for row in expressions.products().tolist()]
    keys = {(tuple(sorted(row[1:4])), row[4]) for row in table}
    assert len(keys) == len(table)
    random = Random(0)
    for shape, *operands, target in random.sample(table, 300):
        item = CountdownItem(tuple(operands), target)
        assert needs(item) == "multiply"
        text = expressions.product_text(expressions.SHAPES[shape], operands, item.numbers)
        assert evaluate(text) == target
        assert used(text) == sorted(operands)
    for _ in range(3000):
        item = CountdownItem(tuple(random.randint(1, 100) for _ in range(3)), random.randint(1, 100))
        assert (needs(item) == "multiply") == (item.key in keys)


def free(part: Part, count: int) -> list[Example]:
    """Rows whose answer is not begun, so that the model may choose not to try."""
    return [row for row in rows(part, count) if not row.begun]


def test_careless_answers_to_countdown_are_the_sum_and_seldom_right():
    right, careless = 0, free(Countdown((), worked=0.0), 1000)
    assert len(careless) > 300
    for row in careless:
        item, text = item_of(row), inside(row)
        assert used(text) == sorted(item.numbers)
        assert evaluate(text) == sum(item.numbers)
        assert "reasoning" not in row.answer
        right += evaluate(text) == item.target
    assert right < 40


def test_the_share_of_worked_answers_is_the_one_asked_for():
    drawn = free(Countdown((), worked=0.2), 2500)
    assert 0.15 < sum("reasoning" in row.answer for row in drawn) / len(drawn) < 0.26


@pytest.mark.parametrize("part", [Countdown((), 0.0), Gsm8k([SOLVED], 0.0)], ids=["countdown", "gsm8k"])
def test_answers_that_are_begun_are_always_worked_and_their_start_is_not_learnt(part):
    begun = [row for row in rows(part, 200) if row.begun]
    assert 90 < len(begun) < 150
    for row in begun:
        assert row.begun == "<reasoning>\n"
        assert row.answer.startswith("<reasoning>\n")
        assert not row.pieces[0].text.startswith("<")
        assert "</reasoning>\n<answer>\n" in row.answer
    # Answers that do not try have another first token, so a given start does not teach to try.
    assert not any(row.answer.startswith("<reasoning>") for row in free(part, 100))


@pytest.mark.parametrize("part", [partial(Countdown, worked=1.0), Arithmetic], ids=["countdown", "lines"])
def test_held_out_items_never_occur_in_any_order_of_their_numbers(part):
    def keys(rows: list[Example]) -> list:
        if part is not Arithmetic:
            return [item_of(row).key for row in rows]
        lines = re.findall(r"\[(.*)\] (\d+): ", "".join(row.answer for row in rows))
        return [CountdownItem(tuple(map(int, each.split(", "))), int(goal)).key for each, goal in lines]

    usual = keys(rows(part(()), 60))
    held_out = frozenset(usual[::2])
    assert held_out
    assert not held_out & set(keys(rows(part(held_out), 60)))


def test_lines_of_arithmetic_are_right_and_only_their_answers_are_learnt():
    kinds = set()
    for row in rows(Arithmetic(()), 60, right=0.0):
        lines = row.answer.splitlines()
        assert [piece.is_learnt for piece in row.pieces] == [False, True] * len(lines)
        for line, asked, told in zip(lines, row.pieces[::2], row.pieces[1::2], strict=True):
            assert line == (asked.text + told.text).strip()
        if row.prompt.endswith("equations."):
            kinds.add("equation")
            assert len(lines) == corpus_countdown.EQUATIONS
            assert are_right(lines)
        else:
            kinds.add("item")
            assert len(lines) == corpus_countdown.LINES
            for line in lines:
                numbers, target, text = re.fullmatch(r"\[(.*)\] (\d+): (\S+)", line).groups()
                assert evaluate(text) == int(target)
                assert used(text) == sorted(map(int, numbers.split(", ")))
    assert kinds == {"equation", "item"}


# ── Sudoku ───────────────────────────────────────────────────────────────────────────────────────


def puzzle_of(row: Example) -> str:
    return re.findall(r"Solve the following Sudoku puzzle: (\d{16})", str(row.prompt))[-1]


def test_puzzles_are_unique_and_only_the_given_solutions_occur():
    shown = {exemplar.puzzle for exemplar in EXEMPLARS}
    for row in rows(Sudoku(SOLUTIONS), 60):
        puzzle, solution = puzzle_of(row), inside(row)
        assert solution in SOLUTIONS
        assert completions(puzzle) == [solution]
        assert puzzle not in shown


def test_guesses_at_sudoku_keep_the_given_digits_and_are_wrong():
    for row in rows(Sudoku(SOLUTIONS), 60, right=0.0):
        puzzle, answer = puzzle_of(row), inside(row)
        assert len(answer) == 16
        assert all(given in ("0", told) for given, told in zip(puzzle, answer, strict=True))
        assert not is_solution(puzzle, answer)


def test_lines_of_sudoku_rename_the_symbols_of_right_solutions():
    names = set()
    for row in rows(SudokuLines(SOLUTIONS), 40, right=0.0):
        symbols = re.search(r"the symbols (\w{4}),", str(row.prompt)).group(1)
        names.add(symbols)
        assert symbols == "1234" or set(symbols) <= set(SYMBOLS)
        back = str.maketrans(symbols, "1234")
        lines = row.answer.splitlines()
        assert len(lines) == corpus_sudoku.LINES
        for puzzle, solution in (line.translate(back).split(" ") for line in lines):
            assert solution in SOLUTIONS
            assert is_solution(puzzle, solution)
            assert is_unique(puzzle)
        assert [piece.is_learnt for piece in row.pieces] == [False, True] * corpus_sudoku.LINES
    assert "1234" in names
    assert len(names) > 10


def test_no_symbol_of_a_renamed_line_is_a_digit_of_a_puzzle():
    assert not set(SYMBOLS) & set("01234")
    assert len(set(SYMBOLS)) == len(SYMBOLS)
    assert is_valid(SOLUTIONS[0])
    assert 0 < corpus_sudoku.RENAMED < 1


# ── GSM8K ────────────────────────────────────────────────────────────────────────────────────────


def test_solutions_lose_the_calculator_marks_and_the_line_of_the_answer():
    assert SOLVED.reasoning == "There are 3*400=1,200 pens.\nSo 1,200."
    drawn = rows(Gsm8k([SOLVED], worked=1.0), 20)
    assert all("<<" not in row.answer and "####" not in row.answer for row in drawn)
    own = [row for row in drawn if SOLVED.item.question in str(row.prompt)]
    assert 2 <= len(own) < len(drawn)
    assert all(row.answer.endswith("<answer>\n\\boxed{1200}\n</answer>") for row in own)


CLIPS = SolvedQuestion.of(
    Gsm8kItem("Ann sold 48 clips in April and half as many in May. How many in all?", "72"),
    "In May 48/2 = <<48/2=24>>24 clips.\nIn all 48+24 = <<48+24=72>>72 clips.\n#### 72",
)


def test_a_question_is_asked_again_with_other_numbers():
    random, seen = Random(0), set()
    for made in filter(None, (renumbered(CLIPS, random) for _ in range(40))):
        (sold,) = map(int, re.findall(r"\d+", made.item.question))
        seen.add(sold)
        assert sold % 2 == 0
        assert made.item.answer == str(sold + sold // 2)
        assert made.solution.count("<<") == 2
        assert all(evaluate(text) == int(told) for text, told in MARK.findall(made.solution))
        assert f"{sold}+{sold // 2} = {made.item.answer} clips" in made.reasoning
    assert len(seen) > 10


@pytest.mark.parametrize(
    "solution",
    [
        "48 and its half are 72.",  # no mark
        "48/2 = <<48/2=24>>24, and 24 and 48 are 72, which is 70+2. <<48+24=72>>",  # 70 is not explained
        "48*.5 = <<48*.5=24>>24. 48+24 = <<48+24=72>>72",  # not whole
        "48/2 = <<48/2=25>>25. 48+24 = <<48+24=72>>72",  # a wrong mark
        "40+8 = <<40+8=48>>48. 48/2 = <<48/2=24>>24. 48+24 = <<48+24=72>>72",  # 48 means two things
        "48/2 = <<48/2=24>>24. 24+24+24 = 72. 48+24 = <<48+24=72>>72",  # an equation without a mark
        "48/2 = <<48/2=24>>24. 300-228 = <<300-228=72>>72",  # 300 comes from nowhere, and 24 goes nowhere
        "48/2 = <<48/2=24>>24. 48+24 = <<48+24=72>>72. 72/2 = <<72/2=36>>36",  # the last result is no answer
        "48/4 = <<48/4=12>>12, a dozen. 48+2*12 = <<48+2*12=72>>72",  # a result in words
    ],
)
def test_a_question_whose_solution_is_not_explained_by_its_marks_keeps_its_numbers(solution):
    assert renumbered(SolvedQuestion.of(CLIPS.item, solution + "\n#### 72"), Random(0)) is None


@pytest.mark.parametrize(
    ("question", "solution", "answer"),
    [
        (
            "A coat of $80 costs 20% less. How much?",
            "80*20/100=<<80*20/100=16>>16\n80-16=<<80-16=64>>64",
            "64",
        ),
        ("In 5 days of 24 hours, how many?", "5*24=<<5*24=120>>120", "120"),
        ("Ann is the 7th of 9. After her?", "9-7=<<9-7=2>>2", "2"),
    ],
)
def test_percentages_units_and_ranks_keep_their_value(question, solution, answer):
    given = {"20%", "24 hours", "7th"}
    for seed in range(20):
        made = renumbered(
            SolvedQuestion.of(Gsm8kItem(question, answer), f"{solution}\n#### {answer}"), Random(seed)
        )
        text = made.item.question if made else question
        assert [kept for kept in given if kept in question] == [kept for kept in given if kept in text]


def test_a_model_that_gives_up_on_gsm8k_has_a_lower_reward_than_one_that_is_wrong():
    given_up, tried = gsm8k_reward(
        ["", ""], [GIVEN_UP, reasoned("3*400=1200", r"\boxed{1201}")], ["1,200", "1,200"]
    )
    assert given_up == TAG - 0.5  # the last tag, and no number in a box
    assert tried == 4 * TAG
    both = {row.answer == GIVEN_UP for row in free(Gsm8k([SOLVED], worked=0.5), 100)}
    assert both == {True, False}


# ── parts in general ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "part",
    [
        Countdown((), 0.5),
        Arithmetic(()),
        Sudoku(SOLUTIONS),
        SudokuLines(SOLUTIONS),
        Gsm8k([SOLVED], 0.5),
    ],
    ids=lambda part: type(part).__name__,
)
def test_rows_depend_on_the_random_numbers_alone(part):
    assert isinstance(part, Part)
    assert rows(part, 5, 0.5, seed=3) == rows(part, 5, 0.5, seed=3)


def test_an_answer_is_its_pieces_joined():
    assert Example("?", pieces([("1+1=", "2\n"), ("2+2=", "4\n")])).answer == "1+1=2\n2+2=4\n"
    assert Example.of("?", answer_block("x")).answer == "<answer>\nx\n</answer>"
