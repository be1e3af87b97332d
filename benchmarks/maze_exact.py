"""What an exact tilt of the maze's corpus would reach: python benchmarks/maze_exact.py, a minute on one core.

A perfect base would have the law of its corpus, which can be drawn from directly: shortest paths under random
door lengths. For test pairs, many such paths are weighed by e^{ar}. The table has the mean reward as a share
of the distance to the best possible one, and the coverage of a few paths drawn by those weights relative to
a = 0: the most of both that any tuning from a perfect base could have.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from dtm.random import stream
from dtm.runs.environment import commit
from dtm.tasks.maze import MazeTask
from dtm.tasks.maze.paths import PathBank
from dtm.tasks.maze.task import Cell, Pair, coverage
from dtm.writing import write_json
from study import called

TILTS = (0.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 40.0, 60.0)
DRAWN = (4, 8, 64)
"""Paths of a pair whose coverage is measured."""


def path(task: MazeTask, towards: Tensor, pair: Pair) -> list[Cell]:
    """The way of a pair under one set of door lengths, cell by cell."""
    (row, column), goal = pair
    side, cells = task.maze.size // 2, [(row, column)]
    end = goal[0] // 2 * side + goal[1] // 2
    while cells[-1] != goal:
        row, column = cells[-1]
        room = int(towards[end, row // 2 * side + column // 2])
        onward = (2 * (room // side) + 1, 2 * (room % side) + 1)
        cells += [((row + onward[0]) // 2, (column + onward[1]) // 2), onward]
    return cells


def covered(paths: Sequence[list[list[Cell]]], weights: Tensor, drawn: int, seed: int) -> float:
    """The coverage of so many paths of each pair, drawn by their weights; the mean of three draws."""
    found = []
    for again in range(3):
        chosen = torch.multinomial(
            weights, drawn, replacement=True, generator=stream(seed, f"draws {again}", drawn)
        )
        picked = [cells[place] for cells, row in zip(paths, chosen.tolist(), strict=True) for place in row]
        group = torch.arange(len(paths)).repeat_interleave(drawn)
        found.append(coverage(picked, torch.ones(len(picked), dtype=torch.bool), group))
    return sum(found) / len(found)


def main() -> None:
    """Weigh and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=256, metavar="N", help="test pairs (default: 256)")
    parser.add_argument("--paths", type=int, default=256, metavar="N", help="paths of each (default: 256)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the numbers to a file")
    options = parser.parse_args()
    task = MazeTask(size=41, completion_length=80)
    pairs: list[Pair] = list(task.prompts("test", options.pairs, stream(0, "pairs")).views)
    bank = PathBank.draw(task.maze, options.paths, stream(0, "bank"))
    paths = [[path(task, towards, pair) for towards in bank.towards] for pair in pairs]
    fits = torch.tensor([[len(cells) <= task.completion_length for cells in row] for row in paths])
    reward = torch.tensor(
        [task.reward([pair] * len(row), row) for pair, row in zip(pairs, paths, strict=True)]
    )
    best, rows = task.best(pairs), []
    for tilt in TILTS:
        weights = (tilt * reward).masked_fill(~fits, -torch.inf).softmax(1)
        mean = float((weights * reward).sum(1).mean())
        rows.append({"tilt": tilt, "reward": mean})
        rows[-1]["gap_closed"] = (mean - rows[0]["reward"]) / (best - rows[0]["reward"])
        for drawn in DRAWN:
            rows[-1][f"coverage_{drawn}"] = covered(paths, weights, drawn, 0)
    print("| a | gap closed | " + " | ".join(f"coverage ratio, {drawn} paths" for drawn in DRAWN) + " |")
    print("|--:|--:|" + "--:|" * len(DRAWN))
    for row in rows:
        ratios = (row[f"coverage_{drawn}"] / rows[0][f"coverage_{drawn}"] for drawn in DRAWN)
        print(f"| {row['tilt']:g} | {row['gap_closed']:.3f} | {' | '.join(f'{r:.3f}' for r in ratios)} |")
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        sizes = {"pairs": options.pairs, "paths": options.paths, "best": best}
        write_json(options.json, {"rows": rows, **sizes, "command": called(), "commit": commit()})


if __name__ == "__main__":
    main()
