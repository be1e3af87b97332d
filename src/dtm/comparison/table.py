"""A comparison as a table: on a terminal with a column for each method, on a page with a row."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table

from dtm.comparison.results import COSTS, Comparison, memory_words

HEADS = {
    "spent_seconds": "seconds",
    "spent_tokens": "tokens",
    "spent_flops": "operations",
    "peak_memory": "memory, MiB",
}
"""Column titles of the costs."""


def table(comparison: Comparison) -> Table:
    """Measures and costs of the base and of every method."""
    cells = _cells(comparison)
    shown = Table("", title=_title(comparison), caption=_caption(comparison), caption_justify="left")
    for name in cells:
        shown.add_column(name, justify="right", overflow="fold")
    for number, head in enumerate(_heads(comparison)):
        shown.add_row(head, *(column[number] for column in cells.values()))
    return shown


def markdown(comparison: Comparison) -> str:
    """The same for a page, with the notes."""
    heads = ["", *_heads(comparison)]
    lines = [f"| {' | '.join(heads)} |", "|---|" + "--:|" * (len(heads) - 1)]
    lines += [f"| {' | '.join([name, *row])} |" for name, row in _cells(comparison).items()]
    notes = [f"- {note}" for note in comparison.notes]
    return "\n".join([f"{_title(comparison)}:", "", *lines, "", _caption(comparison), *notes]) + "\n"


def _title(comparison: Comparison) -> str:
    return f"test prompts, after {comparison.budget.text} of rollouts and updates"


def _caption(comparison: Comparison) -> str:
    seeds = ", ".join(map(str, comparison.seeds))
    over = f"mean over seeds {seeds} ± half of the 95 % interval (Student's t)"
    alone = f"seed {seeds} alone: no interval"
    return f"{over if len(comparison.seeds) > 1 else alone}; memory at its peak, {memory_words(comparison)}"


def _heads(comparison: Comparison) -> list[str]:
    return [*(name.replace("_", " ") for name in comparison.base), *HEADS.values()]


def _cells(comparison: Comparison) -> dict[str, list[str]]:
    """The cells of each row or column, for the base and every method."""
    measures = comparison.base
    cells = {"base": [*(_number(name, value) for name, value in measures.items()), *("–" for _ in COSTS)]}
    for method, found in comparison.summary().items():
        costs = (_number(name, found[name]["mean"] or 0.0) for name in COSTS)
        cells[method] = [*(_spread(name, found[name]) for name in measures), *costs]
    return cells


def _spread(name: str, found: Mapping[str, float | None]) -> str:
    mean, high = found["mean"], found["high"]
    assert mean is not None
    return _number(name, mean) + ("" if high is None else f" ± {_number(name, high - mean)}")


def _number(name: str, value: float) -> str:
    if name == "peak_memory":
        return f"{value / 2**20:.0f}"
    if name == "spent_seconds":
        return f"{value:.3g}" if value < 1000 else f"{value:.0f}"
    if name in COSTS:
        return f"{value:.2e}"
    return f"{value:.1f}" if name == "length" else f"{value:.3f}"
