"""Figures of a run, drawn from its logged rows.

They are `Figure` objects without pyplot: no global state and no window.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter

from dtm.errors import require

Rows = Sequence[Mapping[str, Any]]

BLUE, VERMILION, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#6B6B6B"
PURPLE, ORANGE, SKY = "#CC79A7", "#E69F00", "#56B4E9"
"""Colours of Okabe and Ito, which colour-blind readers can distinguish."""
STYLES = [
    (colour, style)
    for colours in ((BLUE, VERMILION, GREEN), (PURPLE, ORANGE, SKY))
    for style in ("-", "--")
    for colour in colours
]
"""Styles of the settings of a grid: three colours, first solid and then dashed, then three more."""
PLAIN = [
    (colour, style)
    for style in ("-", "--")
    for colour in (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, GREY, "black")
]
"""Styles of unrelated settings: a colour for each, first solid and then dashed."""

PANELS = {
    "accuracy": "Accuracy",
    "accuracy_mul_div": "Accuracy where × or ÷ is needed",
    "valid": "Valid completions",
    "reward": "Mean reward",
    "coverage": "Coverage",
    "distinct": "Distinct answers",
}
DIVERSITY = ("coverage", "distinct", "accuracy_mul_div")
"""Measures that fall when a model collapses to few answers, or to the most frequent kind of answer."""
LENGTH = {"length": "Tokens before the end"}
SHARES = {"accuracy", "accuracy_mul_div", "valid", "distinct"}
"""Measures that are drawn in per cent."""

MANY = 1e4
"""Amounts above this have a prefix at the ticks: 12M for 12 million."""


def annealing_figure(
    *runs: Rows, best: float | None = None, axis: str = "tilt $a$", amount: str = "tilt"
) -> Figure:
    """Plot the measures of `PANELS` against the tilt a, for the seeds of one setting."""
    return comparison_figure({"": runs}, best, axis, amount=amount)


def comparison_figure(
    settings: Mapping[str, Sequence[Rows]],
    best: float | None = None,
    axis: str = "tilt $a$",
    panels: Mapping[str, str] = PANELS,
    styles: Sequence[tuple[str, str]] = STYLES,
    amount: str = "tilt",
) -> Figure:
    """Plot measures against the tilt a, with a panel for each of ``panels`` that the rows have.

    A row has "tilt" (or another ``amount``, named by ``axis``) and some of the keys of ``panels``. The runs
    (seeds) of a setting are shown as their mean and the band from the lowest to the highest, over the amounts
    that all of them reached; between evaluations a run is interpolated. ``best`` is the highest possible mean
    reward.
    """
    everything = [run for runs in settings.values() for run in runs]
    keys = [key for key in panels if all(key in row for run in everything for row in run)]
    require(
        bool(everything) and all(everything) and bool(keys),
        f"no measures to plot: all evaluations of all runs must have one of {', '.join(panels)}",
    )
    legend = len(settings) > 1
    size = 3.1 * len(keys) + 0.3, 3.3 if legend else 2.9
    figure = Figure(figsize=size, dpi=150, layout="constrained")
    for axes, key in zip(figure.subplots(1, len(keys), squeeze=False)[0], keys, strict=True):
        for (name, runs), (colour, style) in zip(settings.items(), itertools.cycle(styles), strict=False):
            _curve(axes, runs, amount, key, colour, style, name)
        axes.margins(y=0.12)
        _tidy(axes)
        axes.set_title(panels[key], fontsize=11)
        if axes.get_xlim()[1] > MANY:
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        if key in SHARES:
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        if key == "reward":
            _references(axes, base=float(axes.lines[0].get_ydata()[0]), best=best)
    figure.supxlabel(axis, fontsize=10)  # once: under each panel a long label would run into the next one
    if legend:
        lines = figure.axes[0].lines[: len(settings)]
        figure.legend(lines, settings, loc="outside upper center", ncols=3, frameon=False, fontsize=9)
    return figure


def diversity_figure(settings: Mapping[str, Sequence[Rows]], amount: str) -> Figure | None:
    """Plot the measures of `DIVERSITY` that the rows have against the mean reward, beginning at the base.

    So methods that learn at different rates can be compared at equal reward. A point is the mean over the
    seeds at one ``amount``, a column of the rows. Return None if the task has no such measure.
    """
    everything = [row for runs in settings.values() for run in runs for row in run]
    keys = [key for key in DIVERSITY if all(key in row for row in everything)]
    if not keys:
        return None
    figure = Figure(figsize=(4.2 * len(keys) + 0.3, 4.2), dpi=150, layout="constrained")
    for axes, key in zip(figure.subplots(1, len(keys), squeeze=False)[0], keys, strict=True):
        for (name, runs), (colour, style) in zip(settings.items(), itertools.cycle(PLAIN), strict=False):
            reward, kept = (_interpolated(runs, amount, measure)[1].mean(0) for measure in ("reward", key))
            axes.plot(reward, kept, f"o{style}", color=colour, markersize=3, linewidth=1.2, label=name)
        _tidy(axes)
        axes.set_title(PANELS[key], fontsize=11)
        if key in SHARES:
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))
    figure.supxlabel("mean reward (measured on validation prompts)", fontsize=10)
    figure.legend(
        figure.axes[0].lines, settings, loc="outside upper center", ncols=4, frameon=False, fontsize=9
    )
    return figure


def _interpolated(runs: Sequence[Rows], amount: str, key: str) -> tuple[list[float], np.ndarray]:
    """Return the amounts that all runs reached, and the measure at them, [runs, amounts]."""
    curves = [{row[amount]: row[key] for row in run} for run in runs]
    reached = min(max(curve) for curve in curves)
    amounts = sorted({at for curve in curves for at in curve if at <= reached})
    values = [np.interp(amounts, sorted(curve), [curve[at] for at in sorted(curve)]) for curve in curves]
    return amounts, np.array(values)


def _curve(
    axes: Axes, runs: Sequence[Rows], amount: str, key: str, colour: str, style: str, name: str
) -> None:
    """Plot the mean of the runs with a dot at every evaluation, and the band between the extremes."""
    amounts, values = _interpolated(runs, amount, key)
    axes.plot(amounts, values.mean(0), f"o{style}", color=colour, markersize=4, zorder=3, label=name)
    if len(runs) > 1:
        axes.fill_between(amounts, values.min(0), values.max(0), color=colour, alpha=0.2, linewidth=0)


def _references(axes: Axes, base: float, best: float | None) -> None:
    """Plot labelled lines at the base's reward and at the best possible one."""
    axes.axhline(base, color=GREY, linewidth=1, linestyle=":")
    _name(axes, f"base {base:.3g}", (0.98, base), below=True)
    if best is not None:
        axes.axhline(best, color=GREY, linewidth=1, linestyle="--")
        _name(axes, f"best possible {best:.3g}", (0.02, best), below=False)
    axes.margins(y=0.15)


def _name(axes: Axes, text: str, at: tuple[float, float], *, below: bool) -> None:
    """Label a line where a rising curve does not cover the text: right below it, or left above it."""
    axes.annotate(
        text,
        at,
        xytext=(0, -3 if below else 3),
        xycoords=axes.get_yaxis_transform(),
        textcoords="offset points",
        ha="right" if below else "left",
        va="top" if below else "bottom",
        fontsize=8.5,
        color=GREY,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
        zorder=1,
    )


def _tidy(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#E3E3E3", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=9)
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10]))
