"""`dtm sweep`: a recipe in several settings and with several seeds; and the plan of many runs."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dtm.cli.parse import add_track, make_parser, refuse_shape, require_track, titled_track, with_flags
from dtm.cli.threads import add_threads, share_threads
from dtm.errors import ConfigError, require

if TYPE_CHECKING:
    from dtm.config import RunConfig

EACH_RUN = "processes of each run on this machine (default: 1)"


def sweep(arguments: list[str]) -> int:
    """Train a recipe in several settings and with several seeds."""
    parser = make_parser(
        "sweep", "Train a recipe in several settings and with several seeds, some side by side."
    )
    parser.add_argument(
        "recipe",
        metavar="RECIPE",
        help="a recipe's name; further flags change its fields, see `dtm train RECIPE --help`",
    )
    parser.add_argument(
        "--vary",
        action="append",
        default=[],
        metavar="FIELD=V1,V2",
        help="values of a field, e.g. tilt.step=2.5,7.5; give it again for a grid",
    )
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="seeds 0 … N − 1 (default: 3)")
    parser.add_argument("--jobs", type=int, default=1, metavar="J", help="runs side by side (default: 1)")
    parser.add_argument("--processes", type=int, default=1, metavar="N", help=EACH_RUN)
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="folder of runs and results (default: runs/RECIPE-sweep)"
    )
    add_threads(parser.add_argument)
    add_track(parser.add_argument, ", each run as one of the tracker's")
    parser.add_argument("--dry-run", action="store_true", help="list the runs with their state and stop")
    options, flags = parser.parse_known_args(arguments)
    if options.seeds < 1:
        raise ConfigError(f"--seeds must be at least 1, got {options.seeds}")

    from dtm.recipes import recipe

    if any(flag.partition("=")[0] == "--seed" for flag in flags):
        raise ConfigError("--seed: a sweep uses the seeds 0 … N − 1; set N with --seeds N")
    start, prog = recipe(options.recipe), f"dtm sweep {options.recipe}"
    refuse_shape([*flags, *(f"--{text}" for text in options.vary)])
    settings = {
        name: _with_both(start, change, flags, prog, name) for name, change in _grid(options.vary).items()
    }

    from rich.console import Console

    from dtm.comparison.jobs import over_seeds, run_all
    from dtm.comparison.sweep import sweep_csv, sweep_markdown, sweep_rows, sweep_table
    from dtm.report.page.data import PageRun
    from dtm.report.page.write import write_pages
    from dtm.runs.environment import environment
    from dtm.runs.folder import PAGE, RUNS
    from dtm.writing import write_json, write_text

    out, seeds = options.out or RUNS / f"{options.recipe}-sweep", range(options.seeds)
    require_track(options.track)
    if options.dry_run:
        return print_plan(over_seeds(settings, seeds), out, options.jobs)
    share_threads(options.threads, options.jobs * (options.processes or 1))
    track = titled_track(options.track, out)
    runs = run_all(over_seeds(settings, seeds), out, options.jobs, processes=options.processes, track=track)
    rows = sweep_rows(settings, seeds, runs)
    command = shlex.join(["dtm", "sweep", *arguments])
    made = {"command": command, "commit": environment()["commit"], "seeds": list(seeds)}
    write_json(out / "sweep.json", {**made, "rows": rows})
    write_text(out / "sweep.csv", sweep_csv(list(settings), seeds, runs))
    write_text(out / "sweep.md", sweep_markdown(rows, seeds))
    console = Console()
    console.print(sweep_table(rows, seeds, console.width))
    print(f"runs: {out}\nresults: {out / 'sweep.json'}, sweep.csv and sweep.md beside it")
    pairs = [(name, f"{name}-{seed}") for name in settings for seed in seeds]
    page = write_pages([PageRun(runs[run].folder, run, name) for name, run in pairs], out / PAGE)
    print(f"page: {page}")
    return 0


def print_plan(configs: Mapping[str, RunConfig], out: Path, jobs: int) -> int:
    """List the runs that a sweep or a comparison would start, and how long one takes."""
    from dtm.comparison.jobs import plan
    from dtm.loop.assemble import assemble
    from dtm.loop.plan import time_estimate

    states = plan(configs, out)
    width = max(map(len, states))
    for name, state in states.items():
        print(f"{name:<{width}}  {state}")
    left = [name for name, state in states.items() if state != "finished"]
    print(f"{len(left)} of {len(states)} runs are to be done, {jobs} at a time, in {out}")
    if left:
        first = assemble(configs[left[0]])  # finds mistakes in the task's data, too
        budget = first.config.budget
        print(f"each: {f'a budget of {budget}' if budget else time_estimate(first)}")
    return 0


def _with_both(
    start: RunConfig, change: Mapping[str, Any], flags: Sequence[str], prog: str, name: str
) -> RunConfig:
    """Return the recipe with the flags and one cell's values; one without the other may be invalid."""
    from dtm.config.serialise import leaves, update

    try:
        varied = update(start, change, f"--vary {name}")
    except ConfigError:  # the cell may be valid only with a flag
        return update(with_flags(start, flags, prog), change, f"--vary {name}")
    cell = with_flags(varied, flags, prog)
    wanted, found = leaves(update(cell, change, f"--vary {name}")), leaves(cell)
    lost = [field for field, value in wanted.items() if found.get(field) != value]
    require(not lost, f"{', '.join(lost)}: given by a flag and varied. Leave one of the two out")
    return cell


def _grid(varied: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Every combination of the values, under a name made of them; values are written as in YAML."""
    from dtm.config.serialise import joined, nested, parse_yaml

    grid: dict[str, dict[str, Any]] = {"": {}}
    for text in varied:
        field, equals, values = text.partition("=")
        if not (field and equals and values):
            raise ConfigError(f"--vary {text}: write FIELD=V1,V2, for example tilt.step=2.5,7.5")
        if field == "seed":
            raise ConfigError("--vary seed: a sweep takes the seeds 0, 1, …; say how many with --seeds N")
        grid = {
            f"{name} {field}={value}".strip(): joined(
                change, nested(field, parse_yaml(value, f"--vary {text}"))
            )
            for value in values.split(",")
            for name, change in grid.items()
        }
    return {name or "recipe": change for name, change in grid.items()}
