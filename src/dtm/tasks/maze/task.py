"""The maze as a task: given a start and a goal, write a path that stays far from the centre.

A sequence is (s, g, SEP, z_1, …, z_n, PAD, …), where ids 0 … size² − 1 are cells row by row. Rewards see
a prompt as ``(start, goal)`` and a completion as a list of cells, each a (row, column).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from statistics import fmean
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from matplotlib.figure import Figure
from torch import Tensor

from dtm.errors import require
from dtm.random import in_rounds, stream
from dtm.records import Prompts, Sequences
from dtm.tasks.base import Sample, known_split
from dtm.tasks.maze.figure import density_figure
from dtm.tasks.maze.grid import Maze
from dtm.tasks.maze.paths import PathBank

Cell = tuple[int, int]
Pair = tuple[Cell, Cell]
Path = Sequence[Cell | None]
"""A cell of a completion; None for a token that is not a cell."""

CPU = torch.device("cpu")


class MazeTask:
    """One fixed maze; prompts are pairs of distinct rooms, some of them held out."""

    def __init__(
        self,
        size: int = 15,
        door_fraction: float = 0.4,
        maze_seed: int = 0,
        completion_length: int | None = None,
        penalty: float = -0.4,
        held_out: float = 0.1,
    ) -> None:
        require(penalty <= 0, f"penalty must not exceed 0, the least reward of a valid path; got {penalty:g}")
        require(
            0 < held_out < 0.5,
            f"held_out, the share of the validation and of the test pairs, must lie strictly between 0 and "
            f"0.5, or a split is empty; got {held_out:g}",
        )
        self.name = f"maze-{size}"
        self.maze = Maze.generate(size, door_fraction, maze_seed)
        self.penalty, self.seed, self.held_out = penalty, maze_seed, held_out
        self.pad_id, self.sep_id, self.mask_id = range(size * size, size * size + 3)
        self.eos_id, self.vocab_size = self.pad_id, size * size + 3
        self._banks: dict[tuple[str, torch.device], PathBank] = {}
        self.completion_length = self._ample_length() if completion_length is None else completion_length
        require(
            self.completion_length >= 3,
            f"completion_length {completion_length} reaches no goal: a path to the next room has 3 cells. "
            f"Leave it out to get a length that holds nearly all paths",
        )
        self.scale = size // 2
        # The widest door makes the best pair: every path passes at least one.
        self.reward_range = (penalty, int(self.maze.edge_clearance.max()) / self.scale)
        self._clearance: dict[Cell, int] = {
            (row, column): int(self.maze.clearance[row, column])
            for row, column in self.maze.open.nonzero().tolist()
        }

    def prompts(self, split: str, count: int, generator: torch.Generator) -> Prompts:
        """Draw ``count`` pairs of the split; no pair repeats before all were drawn."""
        pairs = self._pairs[known_split(split)]
        cells = self.maze.rooms[pairs[in_rounds(len(pairs), count, generator)]]
        tokens = torch.cat([cells, torch.full((count, 1), self.sep_id)], dim=1)
        size = self.maze.size
        views = [(divmod(start, size), divmod(goal, size)) for start, goal in cells.tolist()]
        return Prompts(tokens, torch.ones_like(tokens, dtype=torch.bool), views)

    def examples(
        self, split: str, count: int, generator: torch.Generator, progress: float = 1.0
    ) -> Sequences:
        """Draw diverse random paths between any two rooms; held-out ones come from another bank.

        They are drawn on the generator's device.
        """
        bank = self._bank("train" if known_split(split) == "train" else "test", generator.device)
        paths = bank.sample(count, self.completion_length, self.pad_id, generator)
        last = (paths != self.pad_id).sum(1, keepdim=True) - 1
        separator = torch.full_like(last, self.sep_id)
        tokens = torch.cat([paths[:, :1], paths.gather(1, last), separator, paths], dim=1)
        everywhere = torch.ones_like(tokens, dtype=torch.bool)
        place = torch.arange(tokens.shape[1], device=tokens.device)
        return Sequences(tokens, everywhere, everywhere & (place >= 3))

    def read(self, completions: Int[Tensor, "N C"]) -> list[list[Cell | None]]:
        """Convert tokens to cells up to the last one that is not PAD; an earlier PAD makes a path invalid."""
        size, specials = self.maze.size, [None] * 3
        cells: list[Cell | None] = [*(divmod(cell, size) for cell in range(size * size)), *specials]
        place = torch.arange(1, completions.shape[1] + 1, device=completions.device)
        ends = ((completions != self.pad_id) * place).amax(1).tolist()
        return [
            [cells[token] for token in row[:end]] for row, end in zip(completions.tolist(), ends, strict=True)
        ]

    def flaw(self, prompt: Pair, path: Path) -> str | None:
        """Describe why the path is invalid; None if it is valid."""
        start, goal = prompt
        if not path or path[0] != start:
            return "does not begin at the start"
        if path[-1] != goal:
            return "does not end at the goal"
        cells = [cell for cell in path if cell is not None]
        if len(cells) < len(path):
            return "holds a token that is not a cell"
        if not self._clearance.keys() >= set(cells):
            return "runs into a wall"
        if any(abs(a - c) + abs(b - d) != 1 for (a, b), (c, d) in pairwise(cells)):
            return "jumps"
        return None

    def reward(self, prompts: Sequence[Pair], completions: Sequence[Path], **columns: Any) -> list[float]:
        """Return the path's smallest distance to the centre over size // 2; the penalty if it is invalid."""
        return [
            min(self._clearance[cell] for cell in path if cell) / self.scale
            if self.flaw(prompt, path) is None
            else self.penalty
            for prompt, path in zip(prompts, completions, strict=True)
        ]

    def measure(
        self,
        prompts: Sequence[Pair],
        completions: Sequence[Path],
        reward: Float[Tensor, " N"],
        group: Int[Tensor, " N"],
        **columns: Sequence[Any],
    ) -> dict[str, float]:
        """Return mean reward, validity and diversity; for "coverage" see `coverage`."""
        flawless = [
            self.flaw(prompt, path) is None for prompt, path in zip(prompts, completions, strict=True)
        ]
        valid = torch.tensor(flawless, dtype=torch.bool, device=reward.device)
        return {
            "reward": float(reward.mean()),
            "valid": float(valid.float().mean()),
            "reward_of_valid": float(reward[valid].mean()) if valid.any() else 0.0,
            "coverage": coverage(completions, valid, group),
        }

    def best(self, prompts: Sequence[Pair]) -> float:
        """Return the mean over prompts of the exact best reward, for paths that fit the completion."""
        side = self.maze.size // 2
        rooms = torch.tensor(prompts) // 2 @ torch.tensor([side, 1])
        return float(self._best[rooms[:, 0], rooms[:, 1]].mean())

    def picture(self, before: Sequence[Sample], after: Sequence[Sample]) -> Figure | None:
        """Plot the density of the valid paths of four prompts with the most possible gain over the base.

        Of a pair and its reverse only one is shown.
        """
        panels = [
            (label, self.valid_paths(samples)) for label, samples in (("base", before), ("tuned", after))
        ]
        rewards: dict[Pair, list[float]] = defaultdict(list)
        for path in panels[0][1]:
            pair = (path[0], path[-1])
            rewards[pair] += self.reward([pair], [path])
        gain = {pair: self.best([pair]) - fmean(found) for pair, found in rewards.items()}
        pairs: list[Pair] = []
        for pair in sorted(gain, key=lambda pair: -gain[pair]):
            if pair[::-1] not in pairs:
                pairs.append(pair)
        return density_figure(self.maze, panels, pairs[:4]) if pairs else None

    def valid_paths(self, samples: Sequence[Sample]) -> list[list[Cell]]:
        """Return the valid paths among samples, with cells as tuples, also for samples from JSON."""
        found = []
        for (start, goal), completion in samples:
            path = [None if cell is None else tuple(cell) for cell in completion]
            if self.flaw((tuple(start), tuple(goal)), path) is None:
                found.append([cell for cell in path if cell is not None])
        return found

    def show(self, prompt: Pair, completion: Path) -> str:
        """Format the maze in ASCII with the path as dots (x in walls), and the reason if it is invalid."""
        canvas = [[" " if is_open else "#" for is_open in row] for row in self.maze.open.tolist()]
        for row, column in filter(None, completion):
            canvas[row][column] = "x" if canvas[row][column] in "#x" else "."
        for mark, (row, column) in zip("SG", prompt, strict=True):
            canvas[row][column] = mark
        flaw = self.flaw(prompt, completion)
        verdict = "valid" if flaw is None else f"invalid (the path {flaw})"
        return "\n".join([*map(" ".join, canvas), verdict])

    @cached_property
    def _pairs(self) -> dict[str, Int[Tensor, "K 2"]]:
        """Return the splits as (start, goal) rooms, without pairs too far apart for the completion.

        A pair and its reverse are in the same split, since a reversed path of one is a path of the other.
        """
        cells = 2 * self.maze.hops + 1
        there = ((cells > 1) & (cells <= self.completion_length)).triu().nonzero()
        there = there[torch.randperm(len(there), generator=stream(self.seed, "maze-split"))]
        share = max(1, round(self.held_out * len(there)))
        validation, test, train = there.tensor_split([share, 2 * share])
        return {
            split: torch.cat([part, part.flip(1)])
            for split, part in (("validation", validation), ("test", test), ("train", train))
        }

    @cached_property
    def _best(self) -> Float[Tensor, "R R"]:
        """Compute the exact best reward for every (start, goal)."""
        clearance = self.maze.best_clearance(self.completion_length).double()
        return torch.where(clearance >= 0, clearance / self.scale, self.penalty)

    def _bank(self, split: str, device: torch.device = CPU) -> PathBank:
        """Draw a bank with as many weightings as fit some million (start, goal) entries.

        A model would memorise the few paths of a small bank.
        """
        if (split, device) not in self._banks:
            entries = 40_000_000 if split == "train" else 10_000_000
            weightings = max(16, min(512, entries // len(self.maze.rooms) ** 2))
            if device == CPU:
                bank = PathBank.draw(self.maze, weightings, stream(self.seed, f"maze-paths-{split}"))
            else:
                bank = self._bank(split).to(device)
            self._banks[split, device] = bank
        return self._banks[split, device]

    def _ample_length(self) -> int:
        """Return the smallest multiple of 4 that fits 99 % of the training paths and every shortest path."""
        lengths = self._bank("train").lengths(10_000, stream(self.seed, "maze-length"))
        ample = max(float(lengths.double().quantile(0.99)), float(2 * self.maze.hops.max() + 1))
        return 4 * math.ceil(ample / 4)


def coverage(paths: Sequence[Path], valid: Bool[Tensor, " N"], group: Int[Tensor, " N"]) -> float:
    """Return distinct cells on a group's valid paths over those on its longest one, the mean over groups.

    1 means that all paths of a prompt run along the longest one, a sign of mode collapse. Groups without a
    valid path do not count; 0 if no group has one.
    """
    groups: dict[int, list[set[Cell | None]]] = defaultdict(list)
    for path, is_valid, key in zip(paths, valid.tolist(), group.tolist(), strict=True):
        if is_valid:
            groups[key].append(set(path))
    ratios = [len(set().union(*cells)) / max(map(len, cells)) for cells in groups.values()]
    return fmean(ratios) if ratios else 0.0
