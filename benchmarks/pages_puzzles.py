"""The tables of the small puzzles (docs/puzzles.md), from the files of sudoku-mini and countdown-mini."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Found = Mapping[str, Any]
Table = tuple[Sequence[str], Sequence[Sequence[str]]]
RARE = "accuracy_mul_div"


def tuned(sudoku: Found, countdown: Found) -> Table:
    """Base and tuned models on the test items, at temperature 1 and greedy."""
    measures = (
        ("Sudoku, empty cells", sudoku, "accuracy", 3),
        ("Sudoku, puzzles solved", sudoku, "solved", 3),
        ("Countdown", countdown, "accuracy", 3),
        ("Countdown, + and − suffice", countdown, "accuracy_add_sub", 3),
        ("Countdown, × or ÷ needed", countdown, RARE, 3),
        ("Countdown, tokens before the end", countdown, "length", 1),
    )
    rows = []
    for label, found, name, digits in measures:
        models = (found["base"], found["tuned"], found["base"]["greedy"], found["tuned"]["greedy"])
        rows.append([label, *(_spread(model[name], digits) for model in models)])
    minutes = (f"{found['minutes']['mean']:.1f}" for found in (sudoku, countdown))
    rows.append(["minutes of a run: Sudoku, Countdown", "", ", ".join(minutes), "", ""])
    return ["", "base", "tuned", "base, greedy", "tuned, greedy"], rows


def step(sudoku: Found, countdown: Found) -> Table:
    """The steps h at equal compute."""
    names = [name for name in sudoku["settings"] if name.startswith("h ")]
    rows = []
    for name in names:
        one, two = sudoku["settings"][name], countdown["settings"][name]
        greedy = [f"{found['greedy']['accuracy']['mean']:.3f}" for found in (one, two)]
        spreads = [_spread(one["accuracy"], 3), _spread(two["accuracy"], 3), _spread(two[RARE], 3)]
        rows.append([name.removeprefix("h "), spreads[0], greedy[0], *spreads[1:], greedy[1]])
    return ["h", "Sudoku cells", "Sudoku, greedy", "Countdown", "× ÷", "Countdown, greedy"], rows


def masks(sudoku: Found, countdown: Found) -> Table:
    """Masks in the decoder's blocks and in any order."""
    return _settings(
        sudoku, countdown, {"h 3": "in the decoder's blocks (SAR)", "any-order masks": "any-order"}
    )


def controls(sudoku: Found, countdown: Found) -> Table:
    """The control variates."""
    return _settings(sudoku, countdown, {"h 3": "adaptive, guard", "c one": "c = 1", "c zero": "c = 0"})


def _settings(sudoku: Found, countdown: Found, labels: Mapping[str, str]) -> Table:
    columns = ((sudoku, "accuracy"), (countdown, "accuracy"), (countdown, RARE))
    rows = [
        [label, *(_spread(found["settings"][name][measure], 3) for found, measure in columns)]
        for name, label in labels.items()
    ]
    return ["", "Sudoku cells", "Countdown", "× ÷"], rows


def _spread(found: Found, digits: int) -> str:
    """Mean, lowest and highest; the mean alone where all are equal."""
    mean, low, high = (f"{found[name]:.{digits}f}" for name in ("mean", "low", "high"))
    return mean if low == high else f"{mean} ({low}–{high})"
