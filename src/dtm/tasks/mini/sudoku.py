"""4×4 Sudoku in characters: 16 cells with 0 for an empty one, then the same 16 filled in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from dtm.tasks.answers.sudoku import correct_cells, padded
from dtm.tasks.mini.characters import Alphabet
from dtm.tasks.sudoku import reward as rewards
from dtm.tasks.sudoku.generate import BLANKS, generate, split_solutions, training_solutions
from dtm.tasks.sudoku.grids import CELLS, is_solution
from dtm.tasks.sudoku.items import SudokuItem, test_items

TRAIN, HELD_OUT = 4096, 256
"""Number of puzzles generated per split."""
VALIDATION = 10
"""One in this many training solutions is kept for validation."""


@dataclass(frozen=True)
class Sudoku:
    """Sudoku in characters; answers of the corpus fill each empty cell with probability ``solved``.

    With a data ``folder`` the test is SPG's, whose solutions are in no other split; else our own split.
    """

    folder: Path | None = None
    seed: int = 0
    solved: float = 0.28

    name = "sudoku-mini"
    alphabet = Alphabet("01234>")
    completion_length = 16
    reward_range = rewards.RANGE

    def items(self, split: str) -> Sequence[SudokuItem]:
        """Return puzzles with one completion; no two splits share a solution."""
        if split == "test" and self.folder is not None:
            return test_items(self.folder)
        return generate(self._solutions[split], TRAIN if split == "train" else HELD_OUT, self.seed)

    def question(self, item: SudokuItem) -> str:
        """Format the puzzle and a mark before the answer."""
        return f"{item.puzzle}>"

    def corpus(
        self, split: str, count: int, generator: torch.Generator, solved: float
    ) -> tuple[Int[Tensor, "N P"], Int[Tensor, "N W"]]:
        """Draw puzzles, with as many empty cells as test puzzles, and answers with few cells filled in."""
        device = generator.device
        grids = self.alphabet.grid(self._solutions[split], device)  # a digit is its own id
        blanks = torch.tensor(self._blanks, device=device)

        def draw(*shape: int) -> Tensor:
            return torch.rand(shape, generator=generator, device=device)

        right = grids[(draw(count) * len(grids)).long()]
        empty = blanks[(draw(count) * len(blanks)).long()]
        is_empty = draw(count, CELLS).argsort(1).argsort(1) < empty[:, None]
        is_left = is_empty & (draw(count, CELLS) >= solved)
        return self._asked(torch.where(is_empty, 0, right)), torch.where(is_left, 0, right)

    def reward(self, prompts: Sequence[Any], completions: Sequence[str], **columns: Any) -> list[float]:
        """Return twice the share of empty cells filled correctly; the whole completion is the answer."""
        return rewards.reward(prompts, [f"<answer>{text}</answer>" for text in completions], **columns)

    def measure(self, completions: Sequence[str], columns: Mapping[str, Sequence[Any]]) -> dict[str, float]:
        """Return the accuracy over all empty cells, as published, and the share of puzzles solved.

        Like the reward, it reads only the digits.
        """
        digits = ["".join(filter(str.isdigit, text)) for text in completions]
        rows = list(zip(digits, columns["puzzle"], columns["solution"], strict=True))
        right = sum(correct_cells(puzzle, solution, padded(text)) for text, puzzle, solution in rows)
        empty = sum(puzzle.count("0") for _, puzzle, _ in rows)
        solved = sum(len(text) == CELLS and is_solution(puzzle, text) for text, puzzle, _ in rows)
        return {"accuracy": right / empty, "solved": solved / len(rows)}

    def _asked(self, puzzle: Int[Tensor, "N 16"]) -> Int[Tensor, "N 17"]:
        mark = torch.full_like(puzzle[:, :1], self.alphabet.characters.index(">"))
        return torch.cat([puzzle, mark], dim=1)

    @cached_property
    def _solutions(self) -> dict[str, Sequence[str]]:
        """Return the solutions of each split."""
        if self.folder is None:
            train, test = split_solutions(self.seed)
        else:
            train, test = training_solutions(test_items(self.folder)), []
        kept = [grid for place, grid in enumerate(train) if place % VALIDATION]
        return {"train": kept, "validation": train[::VALIDATION], "test": test}

    @cached_property
    def _blanks(self) -> list[int]:
        """Return the number of empty cells of each test puzzle."""
        return [blanks for blanks, times in BLANKS.items() for _ in range(times)]
