"""Format a comparison: a column per method on a terminal, a row per method in Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean

from rich.table import Table

from dtm.comparison.results import COSTS, Comparison, interval, memory_words
from dtm.comparison.sampled import Beside

HEADS = {
    "spent_seconds": "seconds",
    "spent_tokens": "tokens",
    "spent_flops": "operations",
    "peak_memory": "memory, MiB",
}
"""Column titles of the costs."""
ANSWER = ("passes per answer", "rewards per answer")
"""Column titles of the costs of steering, with --also."""


def tables(comparison: Comparison, width: int) -> list[Table]:
    """Format measures and costs for a terminal: as many tables as its width asks for, each with the base."""
    cells, heads = _cells(comparison), _heads(comparison)
    base = cells.pop("base")
    room = width - _width("", heads) - _width("base", base) - 1
    shown = list[Table]()
    for names in _fitting(cells, room):
        table = Table("", title=None if shown else _title(comparison))
        for name in ("base", *names):
            table.add_column(name, justify="right", overflow="fold")
        for number, head in enumerate(heads):
            table.add_row(head, base[number], *(cells[name][number] for name in names))
        shown.append(table)
    return shown


def _fitting(cells: Mapping[str, Sequence[str]], room: int) -> list[list[str]]:
    """Divide columns into groups that have room side by side, one column at least."""
    groups, left = [list[str]()], room
    for name, column in cells.items():
        needed = _width(name, column)
        if needed > left and groups[-1]:
            groups.append([])
            left = room
        groups[-1].append(name)
        left -= needed
    return groups


def _width(name: str, column: Sequence[str]) -> int:
    """Return the width of a column with its padding and one border."""
    return max(map(len, (name, *column))) + 3


def markdown(comparison: Comparison) -> str:
    """Format the table as Markdown, with the notes."""
    heads = ["", *_heads(comparison)]
    lines = [f"| {' | '.join(heads)} |", "|---|" + "--:|" * (len(heads) - 1)]
    lines += [f"| {' | '.join([name, *row])} |" for name, row in _cells(comparison).items()]
    notes = [f"- {note}" for note in comparison.notes]
    return "\n".join([f"{_title(comparison)}:", "", *lines, "", caption(comparison), *notes]) + "\n"


def caption(comparison: Comparison) -> str:
    """Return how the numbers of the table were made."""
    seeds = ", ".join(map(str, comparison.seeds))
    over = f"mean over seeds {seeds} ± half of the 95 % interval (Student's t)"
    alone = f"seed {seeds} alone: no interval"
    words = f"{over if len(comparison.seeds) > 1 else alone}; memory at its peak, {memory_words(comparison)}"
    if comparison.beside is None or comparison.beside.tilted is None:
        return words
    count = comparison.beside.tilted.rollouts
    return f"{words}; tilted law: {count} weighted rollouts of the base per prompt, ± 1.96 standard errors"


def _title(comparison: Comparison) -> str:
    return f"test prompts, after {comparison.budget.text} of rollouts and updates"


def _heads(comparison: Comparison) -> list[str]:
    against = [f"reward − {comparison.methods[0]}'s"] if len(comparison.methods) > 1 else []
    heads = [*(name.replace("_", " ") for name in comparison.base), *against, *HEADS.values()]
    return heads if comparison.beside is None else [*heads, *ANSWER]


def _cells(comparison: Comparison) -> dict[str, list[str]]:
    """Return the cells of the base, of every method, of steering and of the tilted law."""
    measures, against = comparison.base, comparison.against_first()
    unpaired = ["–"] if against else []
    none = [*unpaired, *("–" for _ in COSTS)]
    cells = {"base": [*(_number(name, value) for name, value in measures.items()), *none]}
    for method, found in comparison.summary().items():
        paired = [_difference(against[method])] if method in against else unpaired
        costs = (_number(name, found[name]["mean"] or 0.0) for name in COSTS)
        cells[method] = [*(_spread(name, found[name]) for name in measures), *paired, *costs]
    if comparison.beside is not None:
        # Tuned models decode like the base: the same number of passes, and no reward calls.
        single = [f"{comparison.beside.forwards:.0f}", "0"]
        cells = {name: [*column, *single] for name, column in cells.items()}
        cells |= _steered(comparison.beside, list(measures), none)
    return cells


def _steered(beside: Beside, measures: Sequence[str], none: Sequence[str]) -> dict[str, list[str]]:
    """Return the cells of steered sampling, and of the tilted law, which has only a mean reward."""
    cells = dict[str, list[str]]()
    for method in beside.methods:
        rows = beside.of(method)
        cost = [f"{fmean(row.forwards for row in rows):.0f}", f"{fmean(row.rewards for row in rows):.0f}"]
        spread = (_spread(name, interval([row.test[name] for row in rows])) for name in measures)
        cells[method] = [*spread, *none, *cost]
    if (law := beside.tilted) is not None:
        # An interval of weights that rest on few rollouts would look far too narrow.
        error = "" if law.poor else f" ± {_number('reward', law.high - law.mean)}"
        reward = _number("reward", law.mean) + error
        known = [reward if name == "reward" else "–" for name in measures]
        cells[f"tilted law, a = {law.tilt:.3g}"] = [*known, *none, "–", "–"]
    return cells


def _spread(name: str, found: Mapping[str, float | None]) -> str:
    mean, high = found["mean"], found["high"]
    assert mean is not None
    return _number(name, mean) + ("" if high is None else f" ± {_number(name, high - mean)}")


def _difference(found: Mapping[str, float | None]) -> str:
    mean, high = found["mean"], found["high"]
    assert mean is not None
    return f"{mean:+.3f}" + ("" if high is None else f" ± {high - mean:.3f}")


def _number(name: str, value: float) -> str:
    if name == "peak_memory":
        return f"{value / 2**20:.0f}"
    if name == "spent_seconds":
        return f"{value:.3g}" if value < 1000 else f"{value:.0f}"
    if name in COSTS:
        return f"{value:.2e}"
    return f"{value:.1f}" if name == "length" else f"{value:.3f}"
