"""The tables of the language study (docs/language.md), from results/language/rows.json."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Found = Mapping[str, Any]
Table = tuple[Sequence[str], Sequence[Sequence[str]]]
MEASURES = (
    ("Countdown, 256 items, length 128", "countdown", "128", "accuracy"),
    ("– items that + and − can solve", "countdown", "128", "accuracy_add_sub"),
    ("– items that need × or ÷", "countdown", "128", "accuracy_mul_div"),
    ("Countdown, length 256", "countdown", "256", "accuracy"),
    ("Sudoku, cells of 256 puzzles", "sudoku", "128", "accuracy"),
    ("Sudoku, solved puzzles", "sudoku", "128", "solved"),
    ("GSM8K, 1,319 questions", "gsm8k", "256", "accuracy"),
)
"""Label, task, length of the completions, and name of a measure on test items."""
PASSES = (1, 2, 4, 8, 16, 32, 64)


def tested(found: Found) -> Table:
    """Base and tuned models on the published test items."""
    rows = []
    for label, task, length, measure in MEASURES:
        base = found["base"][task][length][measure]
        own = [row["test"][length][measure] for row in _of(found, task)]
        rows.append([label, f"{base:.3f}", _spread(own, 3), str(len(own) or "–")])
    return ["share of right answers", "base", "tuned", "seeds"], rows


def phases(found: Found) -> Table:
    """Validation accuracy after each phase, for every seed, measured on test items or not."""
    curves = {f"{row['name']}-{row['seed']}": row["validation"] for row in found["rows"] if row["validation"]}
    curves |= found["unmeasured"]
    tasks = sorted({name.rpartition("-")[0] for name in curves})
    tilts = sorted({point["tilt"] for curve in curves.values() for point in curve})
    rows = []
    for tilt in tilts:
        cells = []
        for task in tasks:
            reached = [
                f"{point['accuracy']:.3f}"
                for name, curve in sorted(curves.items())
                if name.rpartition("-")[0] == task
                for point in {point["tilt"]: point for point in curve}.values()
                if point["tilt"] == tilt
            ]
            cells.append(", ".join(dict.fromkeys(reached) if tilt == 0 else reached))
        rows.append([f"{tilt:g}", *cells])
    return ["tilt a", *tasks], rows


def base(found: Found) -> Table:
    """The base: how it was made, and what it can do at temperature 1."""
    adapted, sampled = found["adapted"], found["base"]["sampled"]
    rates = [sampled["accuracy"], *(sampled[f"pass@{k}"] for k in PASSES[1:])]
    rows = [
        ["minutes of training", f"{adapted['minutes']:.1f}"],
        ["tokens", f"{adapted['tokens'] / 1e6:.0f} million"],
        ["tokens per second", f"{adapted['tokens_per_second']:,.0f}"],
        ["Countdown, validation items", f"{adapted['countdown']['accuracy']:.3f}"],
        ["well-formed answers: Countdown, Sudoku, GSM8K", _formats(adapted)],
        [f"Countdown, test items: pass@{', '.join(map(str, PASSES))}", ", ".join(f"{r:.2f}" for r in rates)],
    ]
    return ["the base, at temperature 1", ""], rows


def cost(found: Found) -> Table:
    """What tuning cost: distance from the base, and the bound on instructions that it was not tuned on."""
    names = ("KL to base", "bound on instructions, base", "bound on instructions, tuned")
    rows = [
        [task, *(_spread([row["cost"][name] for row in _of(found, task)], 1) for name in names)]
        for task in ("countdown", "sudoku")
    ]
    return ["nats per completion", "KL to the base", "bound on held-out instructions, base", "tuned"], rows


def _of(found: Found, task: str) -> list[Found]:
    return [row for row in found["rows"] if row["name"] == task]


def _formats(adapted: Found) -> str:
    return ", ".join(f"{adapted[task]['format']:.3f}" for task in ("countdown", "sudoku", "gsm8k"))


def _spread(values: Iterable[float], digits: int) -> str:
    """Mean, lowest and highest of the seeds; a dash if there are none."""
    known = list(values)
    if not known:
        return "–"
    low, high = (f"{edge:.{digits}f}" for edge in (min(known), max(known)))
    return f"{statistics.fmean(known):.{digits}f} ({low}–{high})" if low != high else low
