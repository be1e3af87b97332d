"""`dtm train` and `dtm pretrain`: one run, from a recipe with a file and flags applied."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

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
    with_choices,
    with_flags,
)
from dtm.cli.threads import add_threads, set_threads
from dtm.runs.interrupts import exit_code

if TYPE_CHECKING:
    from dtm.api import Run
    from dtm.config import RunConfig
    from dtm.loop.assembly import Assembly
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
        print("This run has finished; nothing was done.")
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
    """Print the summary of a finished run and the paths of its files."""
    from rich.console import Console

    from dtm.api import Run
    from dtm.report.display import summary_table
    from dtm.report.outcome import outcome_of, sentence
    from dtm.runs.folder import reading

    with reading(folder.summary):
        summary = Run(folder).summary
        found = outcome_of(summary)
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
    from dtm.pretraining.plan import pretraining_plan, pretraining_time_estimate
    from dtm.recipes import recipe
    from dtm.report.display import print_pretraining

    assembly = assemble(config)
    if options.dry_run:
        return _dry_run(assembly, pretraining_plan(assembly))
    if assembly.placement.device.type == "cpu" and options.found is None:
        print(f"on the CPU: {pretraining_time_estimate(assembly)}. {STOPPING}", flush=True)
    resume = options.found is not None
    run = api.pretrain(assembly, out=options.out, resume=resume, callbacks=[print_pretraining])
    if not run.is_finished:
        return _stopped(run, "pretrain")
    measures = "  ".join(f"{name} {value:.3f}" for name, value in run.summary.items() if value is not None)
    print(f"{measures}\nmodel: {run.folder.model}")
    task = "" if config.task.kind == recipe(config.recipe).task.kind else f"--task {config.task.kind} "
    print(f"Tune it with: dtm train {config.recipe} {task}--model.base {shlex.quote(str(run.folder.model))}")
    return 0


STOPPING = "Ctrl-C stops and saves, --resume continues."


def print_estimate(assembly: Assembly) -> None:
    """Print the prompts, the cache of a block-causal base and, without a GPU, how long the run will take."""
    from dtm.loop.plan import cache_plan, time_estimate
    from dtm.tasks.language import LanguageTask

    if isinstance(assembly.task, LanguageTask):
        print(f"prompts: {assembly.task.describe_counts()}", flush=True)
    for name, text in cache_plan(assembly).items():
        print(f"{name}: {text}", flush=True)
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


def print_plan(plan: Mapping[str, str]) -> None:
    """Print the resolved plan of a dry run."""
    for name, value in plan.items():
        print(f"{name + ':':<22} {value}")


def _dry_run(assembly: Assembly, plan: Mapping[str, str]) -> int:
    from dtm.config.serialise import to_yaml

    print(to_yaml(assembly.config))
    print_plan(plan)
    if assembly.has_base:
        assembly.preflight()
    return 0
