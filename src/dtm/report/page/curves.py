"""The data of a page's curves: columns of the run's events, thinned, and the charts that show them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from dtm.report.figures import PANELS, SHARES
from dtm.report.page.samples import Evaluated

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


def tables(events: Mapping[str, Rows], samples: Sequence[Evaluated], points: int) -> dict[str, Table]:
    """Return columns of evaluations with the reward's interval, and of rollouts, steps and phases."""
    intervals = {(one.step, one.tilt): one.interval for one in samples}
    evaluations = []
    for row in events.get("evaluation", ()):
        low, high = intervals.get((row["step"], round(float(row["tilt"]), 4)), (None, None))
        evaluations.append({**row, "reward_low": low, "reward_high": high})
    phases = [_with_range(row) for row in events.get("phase", ())]
    found = {
        "evaluation": columns(thinned(evaluations, points)),
        "phase": columns(thinned(phases, points)),
        "step": columns(thinned(events.get("step", ()), points)),
        "rollouts": columns(thinned(events.get("rollouts", ()), points)),
    }
    return {name: table for name, table in found.items() if table.get("step")}


def _with_range(row: Mapping[str, Any]) -> dict[str, Any]:
    """Add the ends of the absorbed share's standard error to a phase."""
    share, error = row.get("absorbed"), row.get("absorbed_error")
    if not is_number(share) or not is_number(error):
        return dict(row)
    return {**row, "absorbed_low": share - error, "absorbed_high": share + error}


def columns(rows: Rows) -> Table:
    """Return the numbers of the rows by name; None if a row lacks one."""
    names = dict.fromkeys(name for row in rows for name, value in row.items() if is_number(value))
    return {name: [_short(row[name]) if is_number(row.get(name)) else None for row in rows] for name in names}


def thinned(rows: Rows, most: int) -> Rows:
    """Thin out to at most ``most`` rows: means over adjacent rows, at the place of the last of them.

    >>> thinned([{"step": k, "loss": float(k)} for k in range(4)], most=2)
    [{'step': 1, 'loss': 0.5}, {'step': 3, 'loss': 2.5}]
    """
    if len(rows) <= most:
        return rows
    edges = [round(place * len(rows) / most) for place in range(most + 1)]
    return [_mean(rows[a:b]) for a, b in itertools.pairwise(edges)]


def _mean(rows: Rows) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in rows[-1]:
        values = [row[name] for row in rows if is_number(row.get(name))]
        found[name] = sum(values) / len(values) if values else None
    return found | {name: rows[-1][name] for name in PLACE if name in rows[-1]}


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


def is_number(value: Any) -> TypeGuard[int | float]:
    """Return whether a value is a finite number and not a bool."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _short(value: int | float) -> int | float:
    """Round to six significant digits, to keep the page small."""
    return value if isinstance(value, int) else float(f"{value:.6g}")
