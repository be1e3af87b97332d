"""Commands that start runs: train, pretrain, sweep."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dtm.cli.parse import (
    PROCESSES_HELP,
    SYMBOLS,
    add_resume,
    add_track,
    first_line,
    join_resume,
    make_parser,
    refuse_shape,
    require_track,
    titled_track,
    with_choices,
    with_flags,
)
from dtm.cli.threads import add_threads, set_threads, share_threads
from dtm.errors import ConfigError, require
from dtm.runs.interrupts import exit_code

if TYPE_CHECKING:
    from dtm.api import Run
    from dtm.config import RunConfig
    from dtm.loop.assemble import Assembly
    from dtm.runs.folder import RunFolder

NOTHING_LEARNT = 3
"""Exit code of a run that has finished without a gain in held-out reward."""


def train(arguments: list[str]) -> int:
    """Tilt a recipe's base model towards a reward."""
    parsed = _parse_run("train", first_line(train.__doc__), arguments)
    if parsed is None:
        return 0
    options, config = parsed
    if options.found is not None and options.found.is_finished:
        return _show_run(options.found)

    from dtm.loop.assemble import assemble
    from dtm.loop.plan import training_plan

    require_track(options.track)
    assembly = assemble(config)
    if options.dry_run:
        return _dry_run(assembly, training_plan(assembly))

    from dtm import api
    from dtm.report.display import Display

    assembly.scorer.start()  # before this process takes memory and the GPU
    assembly.preflight()
    if options.found is None:
        print_estimate(assembly)
    with Display(config, assembly.loop) as display:
        run = api.train(
            assembly,
            out=options.out,
            resume=options.found is not None,
            callbacks=[display],
            track=options.track,
        )
    return _show_run(run.folder) if run.is_finished else _stopped(run, "train")


def _show_run(folder: RunFolder) -> int:
    """Print the summary of a finished run and where its parts lie."""
    from rich.console import Console

    from dtm.api import Run
    from dtm.report.display import summary_table
    from dtm.report.outcome import sentence
    from dtm.runs.folder import reading

    with reading(folder.summary):
        summary = Run(folder).summary
        found = summary.get("outcome", {"kind": "learnt", "text": ""})  # earlier releases did not write it
        Console().print(summary_table(summary))
        print(f"run:     {folder.path}\nmodel:   {folder.model}\npage:    {folder.page}")
        print(sentence(found))
        return 0 if found["kind"] == "learnt" else NOTHING_LEARNT


def pretrain(arguments: list[str]) -> int:
    """Train a recipe's base model from scratch."""
    parsed = _parse_run("pretrain", first_line(pretrain.__doc__), arguments)
    if parsed is None:
        return 0
    options, config = parsed
    if options.found is not None and options.found.is_finished:
        print(f"model: {options.found.model}")
        return 0

    from dtm import api
    from dtm.loop.assemble import assemble
    from dtm.loop.plan import pretraining_plan, pretraining_time_estimate
    from dtm.recipes import recipe
    from dtm.report.display import PretrainDisplay

    assembly = assemble(config)
    if options.dry_run:
        return _dry_run(assembly, pretraining_plan(assembly))
    if assembly.placement.device.type == "cpu" and options.found is None:
        print(f"on the CPU: {pretraining_time_estimate(assembly)}. {STOPPING}", flush=True)
    with PretrainDisplay() as display:
        run = api.pretrain(assembly, out=options.out, resume=options.found is not None, callbacks=[display])
    if not run.is_finished:
        return _stopped(run, "pretrain")
    measures = "  ".join(f"{name} {value:.3f}" for name, value in run.summary.items() if value is not None)
    print(f"{measures}\nmodel: {run.folder.model}")
    task = "" if config.task.kind == recipe(config.recipe).task.kind else f"--task {config.task.kind} "
    print(f"Tune it with: dtm train {config.recipe} {task}--model.base {shlex.quote(str(run.folder.model))}")
    return 0


STOPPING = "Ctrl-C stops and saves, --resume continues."


def print_estimate(assembly: Assembly) -> None:
    """Print how many prompts there are and, without a GPU, how long the run will take."""
    from dtm.loop.plan import time_estimate
    from dtm.tasks.language import LanguageTask

    if isinstance(assembly.task, LanguageTask):
        print(f"prompts: {assembly.task.describe_counts()}", flush=True)
    if assembly.placement.device.type == "cpu":
        print(f"on the CPU: {time_estimate(assembly)}. {STOPPING}", flush=True)


def _stopped(run: Run, command: str) -> int:
    again = f"dtm {command} {run.config.recipe} --resume --out {shlex.quote(str(run.path))}"
    print(f"stopped and saved. Continue with: {again}")
    return exit_code()  # scripts do not continue


def _parse_run(
    command: str, description: str, arguments: list[str]
) -> tuple[argparse.Namespace, RunConfig] | None:
    """The options of the command itself, and the recipe with file and flags applied in that order.

    ``options.found`` is the run to continue, and None for a new one. Flags that a finished run was not run
    with are refused. None: help was asked for, and printed.
    """
    from dtm.recipes import RECIPES, recipe

    width = max(map(len, RECIPES))
    recipes = "\n".join(f"  {name:<{width}}  {first_line(make.__doc__)}" for name, make in RECIPES.items())
    parser = make_parser(
        command,
        description,
        f"recipes\n{recipes}\n\n`dtm {command} RECIPE --help` explains the fields of a recipe.\n\n{SYMBOLS}",
        add_help=not arguments or arguments[0].startswith("-"),
    )
    own = parser.add_argument_group("options")
    own.add_argument("recipe", metavar="RECIPE", help="a recipe's name")
    own.add_argument("--config", type=Path, metavar="FILE", help="YAML file with fields to change")
    own.add_argument(
        "--out", type=Path, metavar="DIR", help="the run's folder (default: a new one under runs/)"
    )
    add_resume(own.add_argument, "recipe's")
    add_threads(own.add_argument)
    own.add_argument("--dry-run", action="store_true", help="print the resolved plan and stop")
    if command == "train":
        add_track(own.add_argument)
    own.add_argument("--processes", type=int, metavar="N", help=PROCESSES_HELP)  # taken by `dtm.cli.main`
    options, flags = parser.parse_known_args(join_resume(arguments))

    from dtm.cli.help import page, requested

    prog, section = f"dtm {command} {options.recipe}", requested(flags)
    if section is not None:
        chosen = [flag for flag in flags if flag not in ("-h", "--help", section)]
        config, _ = with_choices(recipe(options.recipe), chosen, prog)
        print(page(config, command, f"usage: {prog} [options] [--any.field VALUE ...]", OPTIONS, section))
        return None
    if command == "train":
        refuse_shape(flags)

    from dtm.runs.folder import require_new
    from dtm.runs.resume import find_run, require_same_config

    found = options.found = find_run(options.recipe, command, options.out, options.resume)
    config = recipe(options.recipe) if found is None else found.read_config()
    if options.config is not None:
        from dtm.config.serialise import load_yaml

        config = load_yaml(options.config, config)
    config = with_flags(config, flags, prog)
    if found is not None:
        options.out = found.path
        if found.is_finished:
            require_same_config(found, config)
    elif options.out is not None:
        require_new(options.out)
    set_threads(options.threads, found)
    return options, config


OPTIONS = """\
options
  --out DIR                 the run's folder (default: a new one under runs/)
  --resume [auto]           continue the run in --out, or the recipe's latest; auto: if there is one
  --config FILE             YAML file with fields to change; `dtm recipes show NAME` prints one
  --threads N               threads of the CPU (default: as many as cores are free, or OMP_NUM_THREADS)
  --dry-run                 print the resolved plan and stop
  --track NAME[:TITLE]      send the numbers of a training to tensorboard, wandb or trackio too
  --processes N             processes on this machine, one for each GPU; several machines: torchrun
  --method NAME             the method: a name below, or path/to/file.py:Class
  --task KIND               the task: its kind, or path/to/file.py:Class
  --reward FILE.py:NAME     your own reward function, or module:name
  --data FILE               your own prompts (task custom): JSON lines, .csv, or hub:USER/NAME
  --data-dir DIR            folder with the data sets of the benchmarks"""


def _dry_run(assembly: Assembly, plan: Mapping[str, str]) -> int:
    from dtm.config.serialise import to_yaml

    print(to_yaml(assembly.config))
    for name, value in plan.items():
        print(f"{name + ':':<22} {value}")
    if assembly.has_base:
        assembly.preflight()
    return 0


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

    from dtm.comparison.sweep import (
        over_seeds,
        run_all,
        sweep_csv,
        sweep_markdown,
        sweep_rows,
        sweep_table,
    )
    from dtm.report.page.data import Subject
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
    page = write_pages([Subject(runs[run].folder, run, name) for name, run in pairs], out / PAGE)
    print(f"page: {page}")
    return 0


def print_plan(configs: Mapping[str, RunConfig], out: Path, jobs: int) -> int:
    """List the runs that a sweep or a comparison would start, and how long one takes."""
    from dtm.comparison.sweep import plan
    from dtm.loop.assemble import assemble
    from dtm.loop.plan import time_estimate

    states = plan(configs, out)
    width = max(map(len, states))
    for name, state in states.items():
        print(f"{name:<{width}}  {state}")
    left = [name for name, state in states.items() if state != "finished"]
    print(f"{len(left)} of {len(states)} runs are to be done, {jobs} at a time, in {out}")
    if left:
        first = configs[left[0]]
        each = f"a budget of {first.budget}" if first.budget else time_estimate(assemble(first))
        print(f"each: {each}")
    return 0


def _with_both(
    start: RunConfig, change: Mapping[str, Any], flags: Sequence[str], prog: str, name: str
) -> RunConfig:
    """The recipe with the flags and one cell's values: only both together need to make sense."""
    from dtm.config.serialise import leaves, update

    try:
        varied = update(start, change, f"--vary {name}")
    except ConfigError:  # a flag may be what it needs
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
