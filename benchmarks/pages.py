"""Fill the tables and sentences of a page from results, so that no number is typed.

A page has blocks, named in `TABLES`. What stands between the two comments is replaced:

    <!-- filled: kills -->
    …
    <!-- end -->

A block from a result that `dtm results check` calls old ends with the reason. Single values inside sentences
are filled by `pages_values`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pages_language
import pages_maze
import pages_models
import pages_puzzles
import pages_speed
import pages_study
import pages_values
from dtm.writing import write_text

BLOCK = re.compile(r"(<!-- filled: ([\w-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
Found = Mapping[str, Any]


def fill(page: Path, results: Path) -> None:
    """Write the blocks and values of a page anew."""
    write_text(page, filled(page.read_text(encoding="utf-8"), results, page.name))


def filled(text: str, results: Path, page: str = "text") -> str:
    """The text with its blocks and values as the results say; `page` is its name in errors."""

    def block(match: re.Match[str]) -> str:
        files, render = TABLES[match[2]]
        paths = [results / file for file in files]
        if not all(path.is_file() for path in paths):
            return f"{match[1]}Not measured yet.\n{match[3]}"
        found = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
        shown, note = render(*found), _old(results, files)
        is_table = shown.splitlines()[-1].startswith("|")  # which would take the note as its next row
        return f"{match[1]}{shown}{chr(10) if note and is_table else ''}{note}{match[3]}"

    return pages_values.with_values(BLOCK.sub(block, text), results, page)


def _old(results: Path, files: Iterable[str]) -> str:
    """A line that says which of the files cannot be made again now, and why; empty if all can."""
    path = results / "manifest.json"
    manifest = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    reasons: dict[str, list[str]] = {}
    for name, entry in manifest.items():
        if entry["old"] and any(file in entry["files"] for file in files):
            reasons.setdefault(entry["old"], []).append(f"`{name}`")
    listed = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in reasons.items())
    return f"*Older results, not regenerated since*: {listed}.\n" if listed else ""


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table; columns after the first are numbers."""
    lines = [re.sub(r"\|  (?=\|)", "| ", f"| {' | '.join(map(str, row))} |") for row in (head, *rows)]
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
        [label, f"{first[name] / unit:.4g}", f"{last[name] / unit:.4g}", f"{growth / unit or 0.0:.2g}"]
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
    return table(["control variate, same settings", "gap closed", "valid", "coverage ratio"], rows)


def demo(found: Found, metered: Found) -> str:
    """The outcome of the demo in sentences; its coverage is in the results of the meter: the same runs."""
    tuned, same = found["comparison"][0], metered["phases"]["meter"]
    if same["reward"] != tuned["reward"]:
        raise LookupError(
            "meter.json and maze-small.json are of different runs: run benchmarks/meter.py again"
        )
    after = same["coverage"]["mean"]
    before = after / tuned["coverage_ratio"]["mean"]  # all seeds have the same base
    valid = found["valid_base"]["mean"], tuned["valid_tuned"]["mean"]
    return (
        f"The mean reward rises from {found['reward_base']:.2f} to {tuned['reward']['mean']:.2f}; "
        f"no model can exceed {found['reward_best']:.2f}. {valid[1]:.0%} of the paths are valid\n"
        f"({valid[0]:.0%} before). Diversity falls: with {found['test']['completions']} paths per prompt the "
        f"coverage is {before:.2f} before and {after:.2f} after, where\n"
        f"1 means that all paths of a prompt are the same (mean of {len(found['seeds'])} seeds).\n"
    )


def headline(sudoku: Found, countdown: Found, maze: Found) -> str:
    """Base and tuned model of the three studies on one GPU."""
    row = maze["rows"][0]
    best = f"mean reward, best possible {row['base']['best']:.3f}"
    rows = [
        ["[`sudoku-mini`](puzzles.md)", "cells of the published test puzzles", *_change(sudoku, "accuracy")],
        ["[`countdown-mini`](puzzles.md)", "published test items", *_change(countdown, "accuracy")],
        ["", "its items that need × or ÷", *_change(countdown, "accuracy_mul_div")],
        ["[`maze`](maze.md), 41×41", best, f"{row['base']['reward']:.3f}", _spread(row["reward"], 3)],
        ["", "valid paths", f"{row['base']['valid']:.3f}", _spread(row["valid"], 3)],
    ]
    lines = table(["", "measure", "base", "tuned"], rows).splitlines(keepends=True)
    lines[1] = "|---|---|--:|--:|\n"
    return "".join(lines)


def compare_newer(found: Found) -> str:
    """Every method of the comparison at one commit, without the steered base."""
    amount, seeds = found["budget"]["amount"] / 1e6, len(found["seeds"])
    note = f"Mean of {seeds} seeds after {amount:g} million tokens through the models, two CPU cores,"
    return f"{table(*pages_study.brief(found))}\n{note} commit {found['commit'][:7]}.\n"


def llada8b_memory(found: Found) -> str:
    """Measured peaks and rates of updates at LLaDA-8B's shape, from the fastest to the leanest setting."""
    parts = ("train_fast", "train_lean_bf16", "train_lean_nf4", "train_small_card")
    rows = [
        [
            _setting(found[part]["setting"]),
            f"{found[part]['peak_gib']:.1f} GiB",
            f"{found[part]['estimate_gib']:.1f} GiB",
            f"{found[part]['rows_per_s']:.1f}",
        ]
        for part in parts
    ]
    head = ["setting", "measured peak", "estimate of `dtm fit`", "rows of updates per second"]
    rates = (found[f"{kind}_rollouts_per_s"] for kind in ("exact", "cached", "ragged"))
    note = (
        "Rollouts per second in bfloat16: {:.2f} exact, {:.1f} with `--decoding.cache block`, {:.1f} where\n"
        "completions also end early and leave the batch (`--decoding.until-end`).".format(*rates)
    )
    source = f"One {found['environment']['gpu']}, random weights, `results/llada8b.json`."
    return f"{table(head, rows)}\n{note}\n{source}\n"


def _setting(setting: Found) -> str:
    base = "NF4" if setting["nf4"] else "bfloat16"
    blocks = "all blocks recomputed" if setting["recomputed_blocks"] else "nothing recomputed"
    return f"{base}, {blocks}, micro-batch {setting['micro_batch']}"


def _change(found: Found, measure: str) -> tuple[str, str]:
    """The base, and the tuned model with its spread."""
    return f"{found['base'][measure]['mean']:.3f}", _spread(found["tuned"][measure], 3)


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


def meter_language(found: Found) -> str:
    """Readings of the progress meter on a language model."""
    return meter(
        {**found, "calibration": [{**row, "order": found["recipe"]} for row in found["calibration"]]}
    )


def meter_phases(found: Found) -> str:
    """The recipe maze-small with and without phases that the meter ends."""
    names = {"meter": "ended by the meter (default)", "never": "of all their steps"}
    columns = (("updates", 0), ("reward", 3), ("valid", 3), ("coverage", 2))
    rows = [
        [names[rule], *(_spread(row[name], digits) for name, digits in columns)]
        for rule, row in found["phases"].items()
    ]
    return f"{table(['phases', 'updates', 'reward', 'valid', 'coverage'], rows)}\n{_source(found)}"


def _study(render: Callable[..., tuple[Sequence[str], Sequence[Sequence[str]]]]) -> Callable[..., str]:
    """A table of the study as Markdown."""
    return lambda *found: table(*render(*found))


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


TABLES: Mapping[str, tuple[tuple[str, ...], Callable[..., str]]] = {
    **{
        part.__name__: ((f"reliability/{part.__name__}.json",), _measured(part))
        for part in (kills, faults, inputs, soak, fuzz, mutations)
    },
    "meter": (("meter.json",), meter),
    "meter-language": (("meter-language.json",), meter_language),
    "meter-phases": (("meter.json",), meter_phases),
    "demo": (("maze-small.json", "meter.json"), demo),
    "maze-small": (("maze-small.json",), maze_small),
    "maze-small-controls": (("maze-small.json",), maze_small_controls),
    "headline": (("sudoku-mini.json", "countdown-mini.json", "maze/summary.json"), headline),
    "compare-newer": (("compare/sudoku-newer.json",), compare_newer),
    "llada8b-memory": (("llada8b.json",), llada8b_memory),
    "study-tokens": (
        ("compare/sudoku-tokens.json", "compare/countdown-tokens.json"),
        _study(pages_study.tokens),
    ),
    "study-laptop": (
        ("compare/sudoku-laptop.json",),
        lambda found: f"{_study(pages_study.laptop)(found)}\n{_source(found)}",
    ),
    "study-newer": (
        ("compare/sudoku-newer.json",),
        lambda found: f"{_study(pages_study.newer)(found)}\n{_source(found)}",
    ),
    **{
        f"maze-{part.__name__}": (("maze/summary.json",), _study(part))
        for part in (pages_maze.bases, pages_maze.default, pages_maze.controls, pages_maze.paper)
    },
    "maze-validation": (("maze/validation.json",), _study(pages_maze.validation)),
    "maze-exact": (("maze/exact.json", "maze/summary.json"), pages_maze.exact),
    "maze-speed": (("maze/speed.json",), _study(pages_maze.speed)),
    "puzzles-tuned": (("sudoku-mini.json", "countdown-mini.json"), _study(pages_puzzles.tuned)),
    **{
        f"puzzles-{part.__name__}": (
            ("sudoku-mini/ablations.json", "countdown-mini/ablations.json"),
            _study(part),
        )
        for part in (pages_puzzles.step, pages_puzzles.masks, pages_puzzles.controls)
    },
    **{
        f"speed-{part.__name__}": (("llada8b.json",), _study(part))
        for part in (pages_speed.rates, pages_speed.switches, pages_speed.phase)
    },
    "speed-fp8": (("audit-fp8.json",), _study(pages_speed.fp8)),
    "study-rates": (("compare/countdown-tokens.json",), _study(pages_study.rates)),
    "study-seconds": (("compare/sudoku-seconds.json",), _study(pages_study.seconds)),
    "block-causal": (
        ("block-causal.json",),
        lambda found: f"{_study(pages_study.block_causal)(found)}\n{_source(found)}",
    ),
    "families-rollouts": (
        ("families.json", "families-llada2.json", "llada8b.json"),
        _study(pages_models.rollouts),
    ),
    "families-updates": (
        ("families.json", "families-llada2.json"),
        lambda found, own: f"{_study(pages_models.updates)(found, own)}\n{_source(found)}{_source(own)}",
    ),
    "memory": ((), _study(pages_models.memory)),
    "processes": (
        ("processes.json",),
        lambda found: f"{_study(pages_models.processes)(found)}\n{_source(found)}",
    ),
    **{
        f"language-{part.__name__}": (("language/rows.json",), _study(part))
        for part in (pages_language.tested, pages_language.phases, pages_language.base, pages_language.cost)
    },
}
"""Blocks by name: files in the folder of results, and the function that writes the block from them."""
PAGES = (
    "README.md",
    "docs/results.md",
    "docs/report.md",
    "docs/reliability.md",
    "docs/llada-24gb.md",
    "docs/study.md",
    "docs/language.md",
    "docs/models.md",
    "docs/maze.md",
    "docs/puzzles.md",
    "docs/speed.md",
    "docs/distributed.md",
)
