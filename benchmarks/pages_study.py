"""The tables of the study (docs/study.md), from the comparisons in results/compare."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean
from typing import Any

from dtm.comparison.results import interval

Found = Mapping[str, Any]
METHODS = {
    "c-dtm": "c-DTM",
    "vrpo": "VRPO",
    "unigrpo": "UniGRPO",
    "wd1": "wd1",
    "gdpo": "GDPO",
    "spg": "SPG",
    "diffu-grpo": "diffu-GRPO",
}
"""Names of the paper's methods, in the order of the tables."""
NEWER = {
    "gdsd": "GDSD",
    "dmpo": "DMPO",
    "espo": "ESPO",
    "just-grpo": "JustGRPO",
    "agrpo": "AGRPO",
    "d2": "d2",
}
"""Names of methods that are newer than the paper."""
RARE = "accuracy_mul_div"
"""The share of the items that need × or ÷ which are solved."""
LR = "optimizer.lr"


def block_causal(found: Found) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Both attentions before and after tuning, mean of the seeds with the lowest and highest."""
    rows = []
    for name, label in (("full", "full"), ("block-causal", "block-causal, exact prefix cache")):
        tuned = [[run["tuned"][measure] for run in found[name]] for measure in ("accuracy", "solved")]
        spreads = [f"{sum(each) / len(each):.3f} ({min(each):.3f}–{max(each):.3f})" for each in tuned]
        base = found[name][0]["base"]["accuracy"]
        minutes = sum(run["seconds"] for run in found[name]) / len(found[name]) / 60
        rows.append([label, f"{base:.3f}", *spreads, f"{minutes:.1f}"])
    return ["attention", "cells, base", "cells, tuned", "puzzles solved, tuned", "minutes of a run"], rows


def tokens(sudoku: Found, countdown: Found) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Every method after the same tokens on both puzzles; the best of a column is bold."""
    columns: list[tuple[str, Found, str, Callable[[Found, str, str], str]]] = [
        ("Sudoku cells", sudoku, "accuracy", _half),
        ("Sudoku solved", sudoku, "solved", _plain),
        ("Countdown", countdown, "accuracy", _half),
        ("+ and − suffice", countdown, "accuracy_add_sub", _plain),
        ("× or ÷ needed", countdown, RARE, _range),
    ]
    rows = [["base", *(f"{found['base'][name]:.3f}" for _, found, name, _ in columns)]]
    for method, label in METHODS.items():
        cells = [label]
        for _, found, name, spread in columns:
            means = {key: row[name]["mean"] for key, row in found["summary"].items()}
            mean = f"{means[method]:.3f}"
            best = f"**{mean}**" if means[method] == max(means.values()) else mean
            cells.append(best + spread(found, method, name))
        rows.append(cells)
    return ["", *(head for head, *_ in columns)], rows


def rates(countdown: Found) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Rare-mode accuracy of the trials that changed the learning rate alone, by that rate."""
    by_rate: dict[float, dict[str, float]] = {}
    for method in METHODS:
        own = {
            trial["changed"].get(LR): trial["measures"][RARE]
            for trial in countdown["tuning"]
            if trial["objective"] == method and set(trial["changed"]) <= {LR}
        }
        low, high = sorted(rate for rate in own if rate is not None)
        for rate, value in own.items():
            # The grid goes by one factor up and down from the default, which changes nothing.
            place = math.sqrt(low * high) if rate is None else rate
            by_rate.setdefault(float(f"{place:.3g}"), {})[method] = value
    rows = [
        [f"{rate:.0e}".replace("e-0", "e-"), *(f"{by_rate[rate][method]:.3f}" for method in METHODS)]
        for rate in sorted(by_rate)
    ]
    return ["learning rate", *METHODS.values()], rows


ON_THE_WAY = (3e6, 6e6)
"""Tokens at which the comparison on a laptop is looked at before its end."""


def laptop(found: Found) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Sudoku on two CPU cores: validation cells on the way, and test measures at the end of the budget."""
    base = found["base"]
    rows = [["base", *[""] * len(ON_THE_WAY), *(f"{base[name]:.3f}" for name in ("accuracy", "solved"))]]
    for method in found["summary"]:
        curves = [row["curve"] for row in found["rows"] if row["method"] == method]
        cells = [METHODS[method]]
        for limit in ON_THE_WAY:
            reached = [_between(curve, limit) for curve in curves]
            cells.append(f"{sum(reached) / len(reached):.3f}")
        summary = found["summary"][method]
        cells.append(f"{summary['accuracy']['mean']:.3f}{_half(found, method, 'accuracy')}")
        cells.append(f"{summary['solved']['mean']:.3f}")
        rows.append(cells)
    heads = [f"validation cells, {limit / 1e6:.0f} million tokens" for limit in ON_THE_WAY]
    return ["", *heads, "test cells, 12 million", "test puzzles solved"], rows


NEWER_MEASURES = {"accuracy": "test cells", "solved": "puzzles solved", "distinct": "distinct"}
"""Measures of the comparison with newer methods, and their heads."""


def _best_first(found: Found) -> list[str]:
    return sorted(found["summary"], key=lambda name: -found["summary"][name]["accuracy"]["mean"])


def brief(found: Found) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """The base, and every method after the same tokens, best first."""
    rows = [["base model", *(f"{found['base'][name]:.3f}" for name in NEWER_MEASURES)]]
    for method in _best_first(found):
        label = "**c-DTM**" if method == "c-dtm" else {**METHODS, **NEWER}[method]
        rows.append([label, *(f"{found['summary'][method][name]['mean']:.3f}" for name in NEWER_MEASURES)])
    return ["", *NEWER_MEASURES.values()], rows


def newer(found: Found) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Every method after the same tokens, best first; then the steered base."""
    measures, steered = tuple(NEWER_MEASURES), found["steered"]
    passes = f"{steered['forwards']:.0f}"
    rows = [["base", *(f"{found['base'][name]:.3f}" for name in measures), "", passes, ""]]
    cells_of = {(row["method"], row["seed"]): row["test"]["accuracy"] for row in found["rows"]}
    for method in _best_first(found):
        cells = [f"{found['summary'][method][name]['mean']:.3f}" for name in measures]
        cells[0] += _half(found, method, "accuracy")
        picked = next(trial for trial in found["tuning"] if trial["picked"] and trial["method"] == method)
        changed = ", ".join(
            f"{field.split('.')[-1]} {f'{value:.3g}' if isinstance(value, float) else value}"
            for field, value in picked["changed"].items()
        )
        paired = interval([cells_of[method, seed] - cells_of["c-dtm", seed] for seed in found["seeds"]])
        against = f"{paired['mean']:+.3f}{_half_width(paired)}" if method != "c-dtm" else ""
        rows.append([{**METHODS, **NEWER}[method], *cells, against, passes, changed or "default"])
    for method in dict.fromkeys(row["method"] for row in steered["rows"]):
        own = [row for row in steered["rows"] if row["method"] == method]
        cells = [f"{fmean(row['test'][name] for row in own):.3f}" for name in measures]
        rows.append([f"base, {method}", *cells, "", f"{fmean(row['forwards'] for row in own):.0f}", ""])
    heads = ["", *NEWER_MEASURES.values(), "cells − c-DTM's, paired by seed"]
    return [*heads, "passes per answer", "picked"], rows


def _between(curve: Sequence[Mapping[str, Any]], tokens: float) -> float:
    """Accuracy at an amount of tokens, linear between evaluations."""
    first, second = next(
        pair
        for pair in itertools.pairwise(curve)
        if pair[0]["spent_tokens"] <= tokens < pair[1]["spent_tokens"]
    )
    share = (tokens - first["spent_tokens"]) / (second["spent_tokens"] - first["spent_tokens"])
    return float(first["accuracy"] + share * (second["accuracy"] - first["accuracy"]))


ENOUGH = 0.98
"""Share of the validation cells that a run of the timed comparison is to pass."""


def seconds(found: Found) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    """Sudoku after equal seconds, and when validation first passed `ENOUGH`."""
    rows = []
    for method in found["summary"]:
        first = [
            next(point["spent_seconds"] for point in row["curve"] if point["accuracy"] > ENOUGH)
            for row in found["rows"]
            if row["objective"] == method
        ]
        summary = found["summary"][method]
        cells = f"{summary['accuracy']['mean']:.3f}{_half(found, method, 'accuracy')}"
        when = f"after {min(first):.1f} to {max(first):.1f} s"
        rows.append([METHODS[method], cells, f"{summary['solved']['mean']:.3f}", when])
    return ["", "cells", "solved", f"first evaluation above {ENOUGH} of the validation cells"], rows


def _half(found: Found, method: str, name: str) -> str:
    """Half of the 95 % interval over seeds."""
    return _half_width(found["summary"][method][name])


def _half_width(interval: Mapping[str, Any]) -> str:
    """Half of an interval; a single seed has none."""
    return "" if interval["low"] is None else f" ± {(interval['high'] - interval['low']) / 2:.3f}"


def _range(found: Found, method: str, name: str) -> str:
    """The lowest and the highest seed."""
    seeds = [row["test"][name] for row in found["rows"] if row["objective"] == method]
    return f" ({min(seeds):.3f}–{max(seeds):.3f})"


def _plain(found: Found, method: str, name: str) -> str:
    return ""
