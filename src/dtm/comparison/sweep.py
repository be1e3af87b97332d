"""Tables of a sweep: held-out measures by setting, over seeds, for the terminal, Markdown and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from statistics import fmean

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from dtm.api import Run
from dtm.comparison.jobs import held_out_measures


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return the mean, lowest and highest value."""
    return {"mean": fmean(values), "low": min(values), "high": max(values)}


def sweep_rows(
    settings: Sequence[str] | Mapping[str, object], seeds: Sequence[int], runs: Mapping[str, Run]
) -> dict[str, dict[str, dict[str, float]]]:
    """Return mean, lowest and highest held-out measures over the seeds of each setting."""
    rows = {}
    for name in settings:
        found = [held_out_measures(runs[f"{name}-{seed}"]) for seed in seeds]
        rows[name] = {measure: spread([row[measure] for row in found]) for measure in found[0]}
    return rows


def sweep_table(
    rows: Mapping[str, Mapping[str, Mapping[str, float]]], seeds: Sequence[int], width: int
) -> Table:
    """Format the rows as a table for the terminal; names of settings are wrapped, never cut.

    Where a column for each measure would break numbers, the measures of a setting stand below each other.
    """
    wide, narrow = (Table("setting", title="held-out measures", caption=_caption(seeds)) for _ in range(2))
    for measure in next(iter(rows.values())):
        wide.add_column(measure.replace("_", " "), no_wrap=True)
    narrow.add_column("measures", no_wrap=True)
    narrow.columns[0].overflow, narrow.show_lines = "fold", True
    for name, spreads in rows.items():
        setting = name.replace(" ", "\n")
        wide.add_row(setting, *(_cell(found, "\n") for found in spreads.values()))
        lines = (f"{measure.replace('_', ' ')} {_cell(found, ' ')}" for measure, found in spreads.items())
        narrow.add_row(setting, "\n".join(lines))
    console = Console(width=10_000)
    return wide if Measurement.get(console, console.options, wide).maximum <= width else narrow


def sweep_markdown(rows: Mapping[str, Mapping[str, Mapping[str, float]]], seeds: Sequence[int]) -> str:
    """Format the rows as Markdown."""
    measures = list(next(iter(rows.values())))
    lines = [f"| setting | {' | '.join(measures)} |", "|---|" + "--:|" * len(measures)]
    lines += [
        f"| {name} | {' | '.join(_cell(found, ' ') for found in spreads.values())} |"
        for name, spreads in rows.items()
    ]
    return "\n".join([*lines, "", f"Held-out measures, {_caption(seeds)}."]) + "\n"


def sweep_csv(settings: Sequence[str], seeds: Sequence[int], runs: Mapping[str, Run]) -> str:
    """Format one line per run as CSV: setting, seed and measures."""
    text = io.StringIO()
    first = runs[f"{settings[0]}-{seeds[0]}"]
    measures = list(held_out_measures(first))
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["setting", "seed", "run", *measures])
    for name in settings:
        for seed in seeds:
            run = runs[f"{name}-{seed}"]
            found = held_out_measures(run)
            writer.writerow([name, seed, run.path, *(found.get(measure) for measure in measures)])
    return text.getvalue()


def _caption(seeds: Sequence[int]) -> str:
    listed = ", ".join(map(str, seeds))
    return f"mean (lowest–highest) over seeds {listed}" if len(seeds) > 1 else f"seed {listed}"


def _cell(found: Mapping[str, float], between: str) -> str:
    if found["low"] == found["high"]:
        return f"{found['mean']:.3f}"
    return f"{found['mean']:.3f}{between}({found['low']:.3f}–{found['high']:.3f})"
