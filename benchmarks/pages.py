"""Fill the tables of a page from results, so that no number is typed.

A page has blocks, named in `TABLES`. What stands between the two comments is replaced:

    <!-- filled: kills -->
    …
    <!-- end -->
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dtm.writing import write_text

BLOCK = re.compile(r"(<!-- filled: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
Found = Mapping[str, Any]


def fill(page: Path, results: Path) -> None:
    """Write the blocks of a page anew."""
    write_text(page, filled(page.read_text(encoding="utf-8"), results))


def filled(text: str, results: Path) -> str:
    """The text with its blocks as the results say."""

    def block(match: re.Match[str]) -> str:
        file, render = TABLES[match[2]]
        if not (results / file).is_file():
            return f"{match[1]}Not measured yet.\n{match[3]}"
        return f"{match[1]}{render(json.loads((results / file).read_text(encoding='utf-8')))}{match[3]}"

    return BLOCK.sub(block, text)


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; columns after the first are numbers."""
    lines = [f"| {' | '.join(map(str, row))} |".replace("|  |", "| |") for row in (head, *rows)]
    lines.insert(1, "|---|" + "--:|" * (len(head) - 1))
    return "".join(f"{line}\n" for line in lines)


def kills(found: Found) -> str:
    """Kills by command, and how the runs ended."""
    rows = [[f"`dtm {name}`", row["kills"], row["runs"], row["equal"]] for name, row in found.items()]
    rows.append(["in all", *(sum(row[column] for row in rows) for column in (1, 2, 3))])
    return table(["command", "kills −9", "runs", "ended bit for bit as without a kill"], rows)


def faults(found: Found) -> str:
    """Faults by kind and outcome."""
    rows = [[kind, sum(row.values()), *row.values()] for kind, row in found.items()]
    rows.append(["in all", *(sum(row[column] for row in rows) for column in range(1, 5))])
    return table(["fault", "injected", "repaired", "refused with a sentence", "broken"], rows)


def inputs(found: Found) -> str:
    """Bad inputs by kind and outcome."""
    rows = [[kind, *row.values()] for kind, row in found.items()]
    rows.append(["in all", *(sum(row[column] for row in rows) for column in range(1, 5))])
    return table(["damaged", "tried", "done all the same", "refused with a sentence", "broken"], rows)


def soak(found: Found) -> str:
    """Counters at the beginning and the end of a long run."""
    names = {
        "resident_bytes": ("memory, MiB", 2**20),
        "open_files": ("open files", 1),
        "checkpoint_bytes": ("checkpoint, KiB", 1024),
        "state_bytes": ("its state.json, KiB", 1024),
    }
    first, last = found["first"], found["last"]
    rows = [
        [label, f"{first[name] / unit:.4g}", f"{last[name] / unit:.4g}", f"{growth / unit:.2g}"]
        for (name, (label, unit)), growth in zip(
            names.items(), found["growth_per_1000_steps"].values(), strict=True
        )
    ]
    head = ["", f"step {first['step']:,.0f}", f"step {last['step']:,.0f}", "growth per 1,000 steps"]
    log = f"`metrics.jsonl` and `samples/` grow by {found['log_bytes_per_step']:.0f} bytes per step.\n"
    return f"{found['hours']:.2f} hours, {found['steps']:,} steps.\n\n{table(head, rows)}\n{log}"


def fuzz(found: Found) -> str:
    """Texts read by the parsers."""
    head = ["texts", "parsers and rewards", "calls", "raised", "slowest call, ms"]
    return table(
        head,
        [[f"{found[name]:,}" for name in ("texts", "functions", "calls", "raised")] + [found["slowest_ms"]]],
    )


def mutations(found: Found) -> str:
    """Mutations of the source that a test noticed."""
    rows = [
        [f"`{package}`", row["mutations"], row["killed"], f"{row['share']:.1%}"]
        for package, row in found["packages"].items()
    ]
    share = found["killed"] / found["mutations"]
    rows.append(["in all", found["mutations"], found["killed"], f"{share:.1%}"])
    survivors = "".join(f"- survived: {name}\n" for name in found["survivors"])
    return table(["package", "mutations", "noticed by a test", "share"], rows) + (
        f"\n{survivors}" if survivors else ""
    )


def maze_small(found: Found) -> str:
    """Base, tuned and best possible of the recipe maze-small."""
    default = found["comparison"][0]
    base, best = f"{found['reward_base']:.3f}", f"{found['reward_best']:.3f}"
    rows = [
        ["mean reward", base, _spread(default["reward"], 3), best],
        ["valid paths", f"{found['valid_base']['mean']:.3f}", _spread(default["valid_tuned"], 3), "1"],
        ["gap to the best reward closed", "–", _spread(default["gap_closed"], 2), "1"],
        ["coverage, relative to the base", "1", _spread(default["coverage_ratio"], 2), "–"],
    ]
    return table(["", "base", "tuned", "best possible"], rows)


def maze_small_controls(found: Found) -> str:
    """The control variates of the recipe maze-small."""
    names = {
        "adaptive": "adaptive, with the ratio guard (default)",
        "one": "c = 1, without guard",
        "zero": "c = 0 (no control variate), without guard",
    }
    columns = (("gap_closed", 2), ("valid_tuned", 3), ("coverage_ratio", 2))
    rows = [
        [names[row["control_variate"]], *(_spread(row[name], digits) for name, digits in columns)]
        for row in found["comparison"]
    ]
    return table(["control variate, equal compute", "gap closed", "valid", "coverage ratio"], rows)


def meter(found: Found) -> str:
    """Readings of the progress meter against known students."""
    names = ("mean", "sd", "error")
    rows = [
        [
            f"{row['student']}, {row['order']}",
            f"{row['truth']:.2f}",
            *(f"{row[name]:.3f}" for name in names),
            *(f"{row[name]:.0%}" for name in ("within_one_error", "within_two_errors")),
        ]
        for row in found["calibration"]
    ]
    head = [
        "student, order of decoding",
        "tilted by",
        "mean",
        "spread",
        "± shown",
        "within one ±",
        "within two",
    ]
    size = found["rollouts"]
    note = (
        f"Each reading: {size['prompts']} prompts × {size['completions']} completions, h = {size['h']:g}.\n"
    )
    return f"{table(head, rows)}\n{note}{_source(found)}"


def meter_phases(found: Found) -> str:
    """The recipe maze-small with and without phases that the meter ends."""
    names = {"meter": "ended by the meter (default)", "never": "of all their steps"}
    columns = (("updates", 0), ("reward", 3), ("valid", 3), ("coverage", 2))
    rows = [
        [names[rule], *(_spread(row[name], digits) for name, digits in columns)]
        for rule, row in found["phases"].items()
    ]
    return f"{table(['phases', 'updates', 'reward', 'valid', 'coverage'], rows)}\n{_source(found)}"


def _source(made: Found) -> str:
    return f"`{made['command']}`, commit {made['commit']}.\n"


def _spread(found: Found, digits: int) -> str:
    """Mean, lowest and highest."""
    mean, low, high = (f"{found[name]:.{digits}f}" for name in ("mean", "low", "high"))
    return f"{mean} ({low}–{high})"


def _measured(render: Callable[[Found], str]) -> Callable[[Found], str]:
    """The table of a part of the reliability, and a line that says where it comes from."""

    def with_source(made: Found) -> str:
        where = f"{made['minutes']:g} minutes on one thread of {made['machine']['processor']}"
        return f"{render(made['found'])}\n`{made['command']}`, commit {made['commit']}, {where}.\n"

    return with_source


TABLES: Mapping[str, tuple[str, Callable[[Found], str]]] = {
    **{
        part.__name__: (f"reliability/{part.__name__}.json", _measured(part))
        for part in (kills, faults, inputs, soak, fuzz, mutations)
    },
    "meter": ("meter.json", meter),
    "meter-phases": ("meter.json", meter_phases),
    "maze-small": ("maze-small.json", maze_small),
    "maze-small-controls": ("maze-small.json", maze_small_controls),
}
"""Blocks by name: the file in the folder of results, and the function that writes the table."""
PAGES = ("README.md", "docs/reliability.md")
