"""Countdown, Sudoku, GSM8K and MATH500: items as rows, rewards and graders."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dtm.tasks.answers import countdown as countdown_answers
from dtm.tasks.answers import gsm8k as gsm8k_answers
from dtm.tasks.answers import math500 as math500_answers
from dtm.tasks.answers import sudoku as sudoku_answers
from dtm.tasks.answers.verdict import Grader
from dtm.tasks.base import Reward
from dtm.tasks.countdown import generate as countdown_generate
from dtm.tasks.countdown import items as countdown_items
from dtm.tasks.countdown import prompts as countdown_prompts
from dtm.tasks.countdown import reward as countdown_reward
from dtm.tasks.data import is_generated
from dtm.tasks.gsm8k import items as gsm8k_items
from dtm.tasks.gsm8k import prompts as gsm8k_prompts
from dtm.tasks.gsm8k import reward as gsm8k_reward
from dtm.tasks.language.rows import Row
from dtm.tasks.math500 import items as math500_items
from dtm.tasks.math500 import prompts as math500_prompts
from dtm.tasks.math500 import reward as math500_reward
from dtm.tasks.protocols import Protocol, Stage, prefill
from dtm.tasks.sudoku import generate as sudoku_generate
from dtm.tasks.sudoku import items as sudoku_items
from dtm.tasks.sudoku import prompts as sudoku_prompts
from dtm.tasks.sudoku import reward as sudoku_reward

Range = tuple[float, float]
"""The lowest and the highest value of a reward."""
PUZZLES = 20_000
"""Number of puzzles generated for training; Sudoku's training file is not public."""
TEST = 256
"""Number of puzzles generated for the test, as many as the published ones."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """The common interface of the four benchmarks; their items differ."""

    train: Callable[[Path], Sequence[Any]]
    test: Callable[[Path], Sequence[Any]]
    prompt: Callable[..., str]
    """``prompt(item, protocol, stage)``."""
    question: Callable[[Any], str]
    """Function that returns the item's question, as graders read it."""
    truth: Callable[[Any], Any]
    """Function that returns the item's ground truth, as graders read it."""
    grade: Grader
    rewards: Mapping[str, tuple[Reward, Range]]
    """Rewards: the paper's, and variants of published code, each with its range."""
    same: Callable[[Any], Hashable] = lambda item: None
    """Function that returns a key that must not be in two splits; None: the prompt is the key."""


def _sudoku_training(folder: Path) -> Sequence[sudoku_items.SudokuItem]:
    if is_generated(folder):
        solutions, _ = sudoku_generate.split_solutions(seed=0)
    else:
        solutions = sudoku_generate.training_solutions(sudoku_items.test_items(folder))
    return sudoku_generate.generate(solutions, PUZZLES, seed=0)


def _sudoku_test(folder: Path) -> Sequence[sudoku_items.SudokuItem]:
    if is_generated(folder):
        return sudoku_generate.generate(sudoku_generate.split_solutions(seed=0)[1], TEST, seed=1)
    return sudoku_items.test_items(folder)


def _countdown_training(folder: Path) -> Sequence[countdown_items.CountdownItem]:
    if is_generated(folder):
        return countdown_generate.generate(PUZZLES, seed=0, excluded=_countdown_test(folder))
    return countdown_items.train_items(folder)


def _countdown_test(folder: Path) -> Sequence[countdown_items.CountdownItem]:
    if is_generated(folder):
        return countdown_generate.generate(TEST, seed=1)
    return countdown_items.test_items(folder)


BENCHMARKS: dict[str, Benchmark] = {
    "countdown": Benchmark(
        train=_countdown_training,
        test=_countdown_test,
        prompt=countdown_prompts.prompt,
        question=countdown_prompts.question,
        truth=lambda item: [list(item.numbers), item.target],
        grade=countdown_answers.grade,
        rewards={
            "paper": (countdown_reward.reward, countdown_reward.RANGE),
            "released": (countdown_reward.released, countdown_reward.RANGE),
            "spg": (countdown_reward.spg, countdown_reward.RANGE),
        },
        same=lambda item: item.key,
    ),
    "sudoku": Benchmark(
        train=_sudoku_training,
        test=_sudoku_test,
        prompt=sudoku_prompts.prompt,
        question=sudoku_prompts.question,
        truth=lambda item: item.solution,
        grade=sudoku_answers.grade,
        rewards={
            "paper": (sudoku_reward.reward, sudoku_reward.RANGE),
            "released": (sudoku_reward.released, sudoku_reward.RANGE),
            "spg": (sudoku_reward.spg, (0.0, 1.0)),
        },
        same=lambda item: item.solution,
    ),
    "gsm8k": Benchmark(
        train=gsm8k_items.train_items,
        test=gsm8k_items.test_items,
        prompt=gsm8k_prompts.prompt,
        question=lambda item: item.question,
        truth=lambda item: f"#### {item.answer}",  # as in the data set: published rules misread a minus
        grade=gsm8k_answers.grade,
        # A tail of 2,000 characters costs two points, and no completion of 512 tokens has a longer one.
        rewards={
            "paper": (gsm8k_reward.reward, gsm8k_reward.reward_range(2000)),
            "spg": (gsm8k_reward.spg, (-4.0, 4.0)),
        },
    ),
    "math500": Benchmark(
        train=math500_items.train_items,
        test=math500_items.test_items,
        prompt=math500_prompts.prompt,
        question=lambda item: item.problem,
        truth=lambda item: item.answer,
        grade=math500_answers.grade,
        rewards={
            "paper": (math500_reward.reward, math500_reward.RANGE),
            "spg": (math500_reward.spg, (0.25, 2.75)),
        },
    ),
}


def benchmark_rows(benchmark: Benchmark, items: Sequence[Any], protocol: Protocol, stage: Stage) -> list[Row]:
    """Convert items to rows of a protocol, with all columns for rewards and graders."""
    return [
        Row(
            benchmark.prompt(item, protocol, stage),
            {
                **item.columns,
                "question": benchmark.question(item),
                "ground_truth": benchmark.truth(item),
            },
            prefill(protocol, stage),
            benchmark.same(item),
        )
        for item in items
    ]
