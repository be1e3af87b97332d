"""Fill the tables of a page from results, so that no number is typed.

A page has a block for each file of results. What stands between the two comments is replaced:

    <!-- filled from kills.json -->
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

BLOCK = re.compile(r"(<!-- filled from (\w+)\.json -->\n).*?(<!-- end -->)", re.DOTALL)
Found = Mapping[str, Any]


def fill(page: Path, results: Path) -> None:
    """Write the blocks of a page anew."""
    write_text(page, filled(page.read_text(encoding="utf-8"), results))


def filled(text: str, results: Path) -> str:
    """The text with its blocks as the results say."""

    def block(match: re.Match[str]) -> str:
        made = json.loads((results / f"{match[2]}.json").read_text(encoding="utf-8"))
        source = (
            f"`{made['command']}`, commit {made['commit']}, {made['minutes']:g} minutes on {_machine(made)}."
        )
        return f"{match[1]}{TABLES[match[2]](made['found'])}\n{source}\n{match[3]}"

    return BLOCK.sub(block, text)


def _machine(made: Found) -> str:
    return f"one thread of {made['machine']['processor']}"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; columns after the first are numbers."""
    lines = [head, ["---"] + ["--:"] * (len(head) - 1), *rows]
    return "".join(f"| {' | '.join(map(str, line))} |\n" for line in lines)


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


TABLES: Mapping[str, Callable[[Found], str]] = {
    part.__name__: part for part in (kills, faults, inputs, soak, fuzz, mutations)
}
