"""`dtm compare`: compare methods, or finished runs."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from dtm.cli.parse import (
    add_track,
    make_parser,
    refuse,
    refuse_shape,
    require_track,
    titled_track,
    with_flags,
)
from dtm.cli.sweep import EACH_RUN, print_plan
from dtm.cli.threads import add_threads, share_threads
from dtm.errors import require

if TYPE_CHECKING:
    from dtm.comparison.results import Comparison
    from dtm.config import RunConfig

EPILOG = """\
shared by all: base, training prompts and their order, rewards, decoder, evaluator, batch, budget.
set per method: its section, the learning rate, and c-DTM's tilt, buffer and schedule.

budgets
  90s, 5m, 1.5h   wall-clock of rollouts, rewards and updates; evaluations are not counted
  1e8tokens       token positions processed by a model: one per forward pass, one more per backward pass
  2e15flops       FLOPs, counted from the model's shape; a backward pass counts as two forward passes

examples
  dtm compare sudoku-mini --methods c-dtm,spg --budget 2m
  dtm compare countdown-mini --methods c-dtm,spg,wd1 --budget 1e8tokens --jobs 4 --tune --set spg.draws=4
  dtm compare sudoku-mini --methods c-dtm --budget 2m --also best-of-16,smc-16
  dtm compare --runs runs/a runs/b --out runs/a-and-b
"""
STARTING = (
    "methods",
    "seeds",
    "jobs",
    "processes",
    "set",
    "settings",
    "tune",
    "trials",
    "threads",
    "track",
    "dry_run",
)
"""Options that start runs; an option that is not given is None."""


def compare(arguments: list[str]) -> int:
    """Compare methods on the same base, prompts, decoder and budget."""
    options, flags = _parser().parse_known_args(arguments)
    require(options.tilt is None or options.also is not None, "--tilt needs --also best-of-N or smc-N")
    if options.runs is not None:
        require(not flags, f"--runs compares finished runs as they are: leave out {' '.join(flags)}")
        require(options.recipe is None, f"--runs compares finished runs: leave out {options.recipe}")
        refuse(options, STARTING, "is for starting runs; leave it out with --runs")
        comparison, out = _gathered(options)
    else:
        require(options.recipe is not None, "dtm compare needs a recipe's name, or --runs RUN RUN ...")
        found = _run(options, flags)
        if found is None:
            return 0
        comparison, out = found
    return _show(comparison, out, shlex.join(["dtm", "compare", *arguments]))


def _parser() -> argparse.ArgumentParser:
    parser = make_parser(
        "compare",
        "Train a recipe with several methods, the same seeds and the same budget, and compare them on test\n"
        "prompts. Further flags change the recipe's fields for all methods. The same command continues a\n"
        "comparison that was stopped.",
        EPILOG,
    )
    add = parser.add_argument
    add("recipe", metavar="RECIPE", nargs="?", help="a recipe's name; see `dtm recipes`")
    add("--methods", metavar="A,B,…", help="methods by name (default: c-dtm,spg)")
    add("--budget", metavar="B", help="budget per run (see below)")
    add("--seeds", type=int, metavar="N", help="seeds 0 … N − 1 (default: 3)")
    add("--jobs", type=int, metavar="J", help="runs at the same time (default: 1)")
    add("--processes", type=int, metavar="N", help=EACH_RUN)
    add("--out", type=Path, metavar="DIR", help="folder of runs and results (default: runs/RECIPE-compare)")
    add(
        "--set",
        action="append",
        metavar="METHOD.FIELD=V",
        help="set a field of one method, e.g. spg.draws=4, spg.optimizer.lr=3e-5, c-dtm.tilt.step=5",
    )
    add("--settings", type=Path, metavar="FILE", help="YAML file with a section of fields for each method")
    add(
        "--tune",
        action="store_true",
        default=None,
        help="choose learning rate and main knob on validation prompts",
    )
    add(
        "--trials",
        type=int,
        metavar="N",
        help="with --tune: trials per method (default: 6, or the size of the smallest grid)",
    )
    add(
        "--also",
        metavar="A,B,…",
        help="also sample the base steered by the reward: best-of-N, smc-N",
    )
    add(
        "--tilt",
        type=float,
        metavar="A",
        help="tilt a of --also smc-N and of the line of the tilted law (default: mean tilt of annealed runs)",
    )
    add_threads(add)
    add_track(add, ", each run as one of the tracker's")
    add("--dry-run", action="store_true", default=None, help="list the runs with their state, and stop")
    add("--runs", nargs="+", type=Path, metavar="RUN", help="compare these finished runs; start none")
    return parser


def _gathered(options: argparse.Namespace) -> tuple[Comparison, Path]:
    from dtm.api import Run
    from dtm.comparison.results import gather, with_sampling
    from dtm.runs.folder import RUNS, unused

    runs = [Run.open(folder) for folder in options.runs]
    comparison = with_sampling(gather(runs), runs, options.also, options.tilt)
    return comparison, options.out or unused(RUNS / "comparison")  # never overwrite an earlier comparison


def _run(options: argparse.Namespace, flags: list[str]) -> tuple[Comparison, Path] | None:
    """Return the comparison and its folder; None after --dry-run has printed the plan."""
    from dtm.comparison.extension import EXTENSIONS
    from dtm.comparison.jobs import over_seeds, run_all
    from dtm.comparison.results import gather, with_sampling
    from dtm.comparison.sampled import check_also
    from dtm.comparison.settings import contestants, parse_names, parse_set, read_settings
    from dtm.comparison.tuning import Trial, grid_size, tune
    from dtm.config.budget import Budget
    from dtm.runs.folder import RUNS

    start = _recipe(options, flags)
    seeds = range(3 if options.seeds is None else options.seeds)
    jobs = 1 if options.jobs is None else options.jobs
    processes = 1 if options.processes is None else options.processes
    require(len(seeds) >= 1, f"--seeds must be at least 1, got {options.seeds}")
    require(jobs >= 1, f"--jobs must be at least 1, got {jobs}")
    require(
        options.trials is None or bool(options.tune),
        "--trials needs --tune",
    )
    names = parse_names(options.methods or "c-dtm,spg")
    given = [] if options.settings is None else read_settings(options.settings)
    configs = contestants(start, names, [*given, *map(parse_set, options.set or [])])
    if options.also is not None:
        check_also(options.also, options.tilt, configs)
    out = options.out or RUNS / f"{options.recipe}-compare"
    require_track(options.track)
    track = titled_track(options.track, out)
    if jobs > 1 and Budget.parse(str(start.budget)).unit == "seconds":
        print(
            "note: with --jobs > 1 the runs share the machine, and each does less work per minute of budget"
        )
    trials: list[Trial] = []
    smallest = min(map(grid_size, configs.values()))
    count = min(6, smallest) if options.trials is None else options.trials
    if options.dry_run:
        if options.tune:
            more = f"and up to {EXTENSIONS} more if the best setting is at the edge of its grid"
            print(f"first {count} trials per method, {more}, in {out / 'tuning'}; the runs use the best")
        print_plan(over_seeds(configs, seeds), out, jobs)
        return None
    share_threads(options.threads, jobs * (processes or 1))
    if options.tune:
        tracked = None if track is None else f"{track}-tuning"
        configs, trials = tune(configs, count, out / "tuning", jobs, processes=processes, track=tracked)
    runs = run_all(over_seeds(configs, seeds), out, jobs, processes=processes, track=track)
    finished = [runs[f"{name}-{seed}"] for name in configs for seed in seeds]
    return with_sampling(gather(finished, trials), finished, options.also, options.tilt), out


def _recipe(options: argparse.Namespace, flags: list[str]) -> RunConfig:
    """Return the common recipe; flags for settings that `dtm compare` sets itself are errors."""
    from dataclasses import replace

    from dtm.recipes import recipe

    given = {flag.partition("=")[0] for flag in flags}
    for flag, instead in (
        ("--objectives", "objectives are called methods since 0.2: use --methods"),
        ("--seed", "use --seeds N, for the seeds 0 … N − 1"),
        ("--method", "name all methods with --methods A,B"),
        ("--method.name", "name all methods with --methods A,B"),
        (
            "--evaluation.split",
            "runs are measured on validation prompts, and on test prompts once, at the end",
        ),
    ):
        require(flag not in given, f"{flag}: {instead}")
    own = sorted(flag for flag in given if flag.startswith("--method."))
    require(not own, f"{', '.join(own)}: give the settings of one method as --set METHOD.FIELD=VALUE")
    refuse_shape(given)
    require(options.budget is not None, "--budget is required: 5m, 1e8tokens or 2e15flops")
    start = recipe(options.recipe)
    # Every run spends its whole budget, unless --evaluation.patience is given.
    start = replace(start, evaluation=replace(start.evaluation, patience=None))
    config = with_flags(start, [*flags, "--budget", options.budget], f"dtm compare {options.recipe}")
    require(config.evaluation.split == "validation", "the recipe's evaluation.split must be validation")
    return config


def _show(comparison: Comparison, out: Path, command: str) -> int:
    from rich.console import Console

    from dtm.comparison.table import caption, markdown, tables
    from dtm.report.page.data import PageRun
    from dtm.report.page.write import write_pages
    from dtm.runs.folder import PAGE, RunFolder, make_folder
    from dtm.writing import save_figure, write_json, write_text

    make_folder(out)
    write_json(out / "compare.json", comparison.to_json(command))
    write_text(out / "compare.md", markdown(comparison))
    figures = {out / f"{name}.png": figure for name, figure in comparison.figures().items()}
    for path, figure in figures.items():
        save_figure(figure, path)
    console = Console()
    for table in tables(comparison, console.width):
        console.print(table)
    print(caption(comparison))
    for note in comparison.notes:
        print(f"note: {note}")
    print(f"rows: {out / 'compare.json'}\ntable: {out / 'compare.md'}")
    print(f"figures: {', '.join(map(str, figures))}")
    shown = [PageRun(RunFolder(Path(row.run)), Path(row.run).name, row.method) for row in comparison.rows]
    print(f"page: {write_pages(shown, out / PAGE)}")
    return 0
