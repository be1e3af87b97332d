"""The small puzzles: text survives the trip through tensors, and the corpus is as unfinished as it says."""

from __future__ import annotations

import re

import pytest
import torch

from dtm.errors import ConfigError
from dtm.random import stream
from dtm.tasks.answers.countdown import solves
from dtm.tasks.base import Task
from dtm.tasks.countdown.items import CountdownItem
from dtm.tasks.countdown.solve import needs
from dtm.tasks.mini import Countdown, MiniTask, Sudoku
from dtm.tasks.mini.characters import Alphabet, flush_left, flush_right
from dtm.tasks.sudoku.grids import completions, is_solution, is_unique

PUZZLES = pytest.mark.parametrize("puzzle", [Sudoku(), Countdown()], ids=lambda puzzle: puzzle.name)


@pytest.fixture(scope="module")
def countdown() -> MiniTask:
    return MiniTask(Countdown(solved=0.3, multiply=0.2))


def corpus(task: MiniTask, count: int = 4000) -> list[tuple[str, str]]:
    """Questions and answers as text."""
    rows = task.examples("train", count, stream(0, "corpus"))
    width = rows.tokens.shape[1] - task.completion_length
    questions = [
        "".join(task.alphabet.characters[token] for token in row[:width] if token != task.eos_id)
        for row in rows.tokens.tolist()
    ]
    return list(zip(questions, task.read(rows.tokens[:, width:]), strict=True))


# ── characters ────────────────────────────────────────────────────────────────────────────────────


def test_blanks_move_to_one_side():
    alphabet = Alphabet("ab")
    grid = alphabet.grid(["a b", " ab", "b"])
    assert flush_left(grid, 3, alphabet.eos_id).tolist() == [[0, 1, 2], [0, 1, 2], [1, 2, 2]]
    tokens, real = flush_right(grid, alphabet.eos_id)
    assert tokens.tolist() == [[2, 0, 1], [2, 0, 1], [2, 2, 1]]
    assert real.tolist() == [[False, True, True], [False, True, True], [False, False, True]]


def test_text_ends_at_the_first_end():
    alphabet = Alphabet("ab")
    assert alphabet.text([0, 1, alphabet.eos_id, 0]) == "ab"
    assert alphabet.text([alphabet.mask_id]) == "_"


def test_a_character_that_is_not_there_is_named():
    with pytest.raises(ConfigError, match="no characters of this alphabet: 'z'"):
        Alphabet("ab").grid(["az"])


# ── both puzzles ──────────────────────────────────────────────────────────────────────────────────


@PUZZLES
def test_the_task_meets_the_protocol(puzzle):
    task: Task = MiniTask(puzzle)
    assert {task.eos_id, task.mask_id} == {task.vocab_size - 2, task.vocab_size - 1}


@PUZZLES
def test_prompts_are_padded_on_the_left_and_carry_their_columns(puzzle):
    task = MiniTask(puzzle)
    prompts = task.prompts("validation", 20, stream(0, "test"))
    for row, attention, view in zip(prompts.tokens, prompts.attention, prompts.views, strict=True):
        assert task.alphabet.text(row[attention].tolist()) == view
        assert attention.tolist() == sorted(attention.tolist())
    assert all(len(values) == 20 for values in prompts.columns.values())


@PUZZLES
def test_no_question_of_a_split_is_in_another(puzzle):
    splits = [
        {puzzle.question(item) for item in puzzle.items(split)} for split in ("train", "validation", "test")
    ]
    assert all(len(split) >= 256 for split in splits)
    assert not splits[0] & splits[1]
    assert not splits[0] & splits[2]
    assert not splits[1] & splits[2]


@PUZZLES
def test_an_unknown_split_is_refused(puzzle):
    with pytest.raises(ConfigError, match="Did you mean 'test'"):
        MiniTask(puzzle).prompts("tests", 1, stream(0, "test"))
    with pytest.raises(ConfigError, match="Did you mean 'test'"):
        MiniTask(puzzle).examples("tests", 1, stream(0, "test"))


# ── Sudoku ────────────────────────────────────────────────────────────────────────────────────────


def test_sudoku_solutions_are_not_shared_between_splits():
    puzzle = Sudoku()
    solutions = [{item.solution for item in puzzle.items(split)} for split in ("train", "validation", "test")]
    assert not solutions[0] & solutions[1]
    assert not solutions[0] & solutions[2]
    assert all(is_unique(item.puzzle) for item in puzzle.items("test"))


def test_the_sudoku_corpus_fills_in_its_share_of_cells_and_all_of_them_correctly():
    task = MiniTask(Sudoku(solved=0.25))
    rows = [(question[:-1], answer) for question, answer in corpus(task)]
    assert all(p in ("0", a) for puzzle, answer in rows for p, a in zip(puzzle, answer, strict=True))
    assert all(completions(answer) for _, answer in rows)
    empty, left = (sum(text.count("0") for text in column) for column in zip(*rows, strict=True))
    assert 1 - left / empty == pytest.approx(0.25, abs=0.01)


def test_no_held_out_sudoku_solution_is_in_the_corpus():
    task = MiniTask(Sudoku(solved=1.0))
    written = {answer for _, answer in corpus(task)}
    held_out = {item.solution for split in ("validation", "test") for item in task.puzzle.items(split)}
    assert len(written) > 100
    assert not written & held_out


def test_the_corpus_is_finished_until_the_puzzle_is_learnt():
    task = MiniTask(Sudoku(solved=0.0), skilled=0.5)
    finished = [
        sum(
            is_solution(task.alphabet.text(row[:16]), task.alphabet.text(row[17:]))
            for row in task.examples("train", 50, stream(0, "corpus"), progress).tokens.tolist()
        )
        for progress in (0.0, 0.49, 0.5, 1.0)
    ]
    assert finished == [50, 50, 0, 0]


def test_sudoku_is_paid_and_measured_by_cells():
    task = MiniTask(Sudoku())
    columns = {"puzzle": ["0014002020004130"], "solution": ["3214142323414132"]}
    half = "3214142311111111"
    (paid,) = task.reward([""], [half], **columns)
    measured = task.measure([""], [half], torch.tensor([paid]), torch.tensor([0]), **columns)
    assert paid == pytest.approx(2 * measured["accuracy"])
    assert measured["solved"] == 0
    (best,) = task.reward([""], columns["solution"], **columns)
    assert best == task.best([""]) == 2


# ── Countdown ─────────────────────────────────────────────────────────────────────────────────────


def test_the_countdown_corpus_reaches_its_targets_and_finishes_its_share_of_answers():
    rows = corpus(MiniTask(Countdown(solved=0.3)))
    whole = corpus(MiniTask(Countdown(solved=1.0)))
    finished = 0
    for (question, answer), (_, right) in zip(rows, whole, strict=True):
        given, target = _parsed(question)
        assert solves(right, given, target)
        assert right.startswith(answer)
        finished += answer == right
        assert len(re.findall(r"\d+", answer)) == (3 if answer == right else 2)
    assert finished / len(rows) == pytest.approx(0.3, abs=0.03)


def test_countdown_sums_keep_the_order_of_the_question_and_products_do_not():
    orders = {"sum": set(), "product": set()}
    for question, answer in corpus(MiniTask(Countdown(solved=1.0))):
        given, _ = _parsed(question)
        written = [int(number) for number in re.findall(r"\d+", answer)]
        if len(set(given)) == 3:
            kind = "product" if set("*/") & set(answer) else "sum"
            orders[kind].add(tuple(written.index(number) for number in given))
    assert orders["sum"] == {(0, 1, 2)}
    assert len(orders["product"]) == 6


def test_countdown_numbers_have_two_digits_at_least():
    puzzle = Countdown()
    assert puzzle.question(CountdownItem((7, 100, 30), 9)) == "07,100,30=09>"


def test_no_held_out_countdown_item_is_in_the_corpus(monkeypatch):
    puzzle = Countdown(solved=1.0)
    (question, *_), _ = zip(*corpus(MiniTask(puzzle), 50), strict=True)
    numbers, target = question.rstrip(">").split("=")
    item = CountdownItem(tuple(int(n) for n in reversed(numbers.split(","))), int(target))
    kept = Countdown.items

    def with_it(self, split):
        return [*kept(self, split), item] if split == "test" else kept(self, split)

    monkeypatch.setattr(Countdown, "items", with_it)
    found = corpus(MiniTask(Countdown(solved=1.0)), 50)
    assert question not in [asked for asked, _ in found]
    assert all(CountdownItem(*_parsed(asked)).key != item.key for asked, _ in found)


def _parsed(question: str) -> tuple[tuple[int, ...], int]:
    numbers, target = question.rstrip(">").split("=")
    return tuple(int(number) for number in numbers.split(",")), int(target)


def test_countdown_measures_its_two_modes(countdown):
    columns = {"numbers": [[2, 3, 4], [2, 3, 4]], "target": [9, 24]}
    assert [needs(CountdownItem(tuple(n), t)) for n, t in zip(*columns.values(), strict=True)] == [
        "add",
        "multiply",
    ]
    answers = ["2+3+4", "2+3+4"]
    paid = countdown.reward(["", ""], answers, **columns)
    assert paid == [1.0, 0.1]
    measured = countdown.measure(["", ""], answers, torch.tensor(paid), torch.tensor([0, 0]), **columns)
    assert measured["accuracy"] == 0.5
    assert (measured["accuracy_add_sub"], measured["accuracy_mul_div"]) == (1.0, 0.0)
    assert measured["distinct"] == 0.5
