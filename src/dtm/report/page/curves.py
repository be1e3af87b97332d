"""The data of a page's curves: columns of the run's events, thinned, and the charts that show them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dtm.report.figures import PANELS, SHARES
from dtm.runs.events import is_number

Rows = Sequence[Mapping[str, Any]]
Table = dict[str, list[int | float | None]]

PLACE = ("step", "seconds", "spent_tokens")
"""Columns for the x-axis of a curve."""
BOOKKEEPING = {*PLACE, "tilt", "h", "phase", "phase_step", "steps", "spent_seconds", "spent_flops", "best"}
"""Columns that are not measures."""
TITLES = {
    "reward": "Reward",
    **{name: title for name, title in PANELS.items() if name != "reward"},
    "reward_of_valid": "Reward of valid completions",
    "solved": "Puzzles solved",
    "length": "Tokens before the end",
    "kl_to_base": "KL to the base, nats per completion",
}


def tables(curves: Mapping[str, Rows]) -> dict[str, Table]:
    """Return the columns of evaluations, phases, steps and rollouts; kinds without rows are left out."""
    found = {kind: columns(rows) for kind, rows in curves.items()}
    return {kind: table for kind, table in found.items() if table.get("step")}


def columns(rows: Rows) -> Table:
    """Return the numbers of the rows by name; None if a row lacks one."""
    names = dict.fromkeys(name for row in rows for name, value in row.items() if is_number(value))
    return {name: [_short(row[name]) if is_number(row.get(name)) else None for row in rows] for name in names}


class Thinner:
    """Means over adjacent rows, at the place of the last of them: at most ``most`` of ``count`` rows.

    Rows are added from the last to the first. Of a group of rows only the last one and sums are held.

    >>> thinner = Thinner(count=4, most=2)
    >>> for k in (3, 2, 1, 0):
    ...     thinner.add({"step": k, "loss": float(k)})
    >>> thinner.rows
    [{'step': 1, 'loss': 0.5}, {'step': 3, 'loss': 2.5}]
    """

    def __init__(self, count: int, most: int) -> None:
        groups = min(count, most)
        self._starts = [round(place * count / groups) for place in range(groups)]
        self._left = count
        self._last: Mapping[str, Any] | None = None  # of the group
        self._sums: dict[str, tuple[float, int]] = {}
        self._found: list[Mapping[str, Any]] = []

    @property
    def rows(self) -> Rows:
        """The thinned rows, the first one first."""
        return self._found[::-1]

    def add(self, row: Mapping[str, Any]) -> None:
        """Add the row before those added so far."""
        self._left -= 1
        is_first = bool(self._starts) and self._left == self._starts[-1]
        if is_first and self._last is None:  # a group of one row
            self._found.append(row)
        else:
            self._last = row if self._last is None else self._last
            self._sum(row, self._last)
            if is_first:
                self._found.append(self._mean(self._last))
                self._last, self._sums = None, {}
        if is_first:
            self._starts.pop()

    def _sum(self, row: Mapping[str, Any], names: Iterable[str]) -> None:
        for name in names:
            value = row.get(name)
            if is_number(value):
                total, count = self._sums.get(name, (0, 0))
                self._sums[name] = total + value, count + 1

    def _mean(self, last: Mapping[str, Any]) -> Mapping[str, Any]:
        sums = self._sums
        means = {name: sums[name][0] / sums[name][1] if name in sums else None for name in last}
        return means | {name: last[name] for name in PLACE if name in last}


def charts(found: Mapping[str, Table], best: float | None) -> list[dict[str, Any]]:
    """Return the charts for which a run has numbers, in the order of the page."""
    measured = [
        name
        for name in found.get("evaluation", {})
        if name not in {*BOOKKEEPING, "reward_low", "reward_high"}
    ]
    order = [*TITLES, *measured]
    evaluated = [_measure(name, best) for name in sorted(set(measured), key=order.index)]
    divergences = sorted({name for name in found.get("step", {}) if name.lower().startswith("kl")})
    absorbed = _chart(
        "absorbed", "Tilt absorbed", [_line("phase", "absorbed", "end of a phase", ranged=True)], "share"
    )
    absorbed |= {"zero": True, "references": [{"value": 1, "label": "the whole step h"}]}
    wanted = [
        *evaluated,
        absorbed,
        _chart("ess", "Effective sample size", [_line("step", "ess", "of the rollouts")], "share", zero=True),
        *(_chart(name, name.replace("_", " "), [_line("step", name, "updates")]) for name in divergences),
        _chart("loss", "Loss", [_line("step", "loss", "updates")]),
        _chart("grad_norm", "Gradient norm", [_line("step", "grad_norm", "updates")], zero=True),
        _chart("lr", "Learning rate", [_line("step", "lr", "updates")], zero=True),
        _chart("speed", "Rollouts per second", [_line("rollouts", "per_second", "drawn")], zero=True),
        _chart("memory", "Peak memory", [_line("phase", "peak_memory", "so far")], "bytes", zero=True),
    ]
    kept = []
    for chart in wanted:
        chart["lines"] = [line for line in chart["lines"] if _has(found, line["table"], line["y"])]
        if chart["lines"]:
            kept.append(chart)
    return kept


def _measure(name: str, best: float | None) -> dict[str, Any]:
    lines = [_line("evaluation", name, "held out", ranged=name == "reward")]
    chart = _chart(name, TITLES.get(name, name.replace("_", " ").capitalize()), lines)
    if name in SHARES or name == "solved":
        chart["format"] = "share"
    if name == "reward":
        lines.append(_line("rollouts", "reward", "training rollouts"))
        chart["references"] = [] if best is None else [{"value": best, "label": "best possible"}]
    return chart


def _chart(
    key: str, title: str, lines: list[dict[str, Any]], format: str = "number", *, zero: bool = False
) -> dict[str, Any]:
    """Return a chart; ``zero``: its scale starts at 0."""
    return {"id": key, "title": title, "lines": lines, "format": format, "references": [], "zero": zero}


def _line(table: str, y: str, label: str, *, ranged: bool = False) -> dict[str, Any]:
    """Return a curve; a ranged one also has the columns ``y_low`` and ``y_high``."""
    return {"table": table, "y": y, "label": label, "ranged": ranged}


def _has(found: Mapping[str, Table], table: str, name: str) -> bool:
    return any(value is not None for value in found.get(table, {}).get(name, ()))


def _short(value: int | float) -> int | float:
    """Round to six significant digits, to keep the page small."""
    return value if isinstance(value, int) else float(f"{value:.6g}")
