"""The command line: parse, call, print. Everything it does is a call of `dtm.api`.

Heavy imports happen inside the commands, so that help answers at once.
"""

from __future__ import annotations

import argparse
import itertools
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from dtm.errors import ConfigError, DtmError, nearest

if TYPE_CHECKING:
    from dtm.api import Run
    from dtm.training.config import RunConfig

SYMBOLS = """\
symbols
  π_0, π_a       the base model, and the model tilted so far: what a token is at a masked position
  r              the reward of a finished sequence
  a, A, h        the tilt reached, the tilt to reach, and what one phase adds: ρ_a ∝ ρ_0 e^(a r)
  w = e^(h r)    the weight of a rollout in a phase; ESS is the fraction of rollouts that weigh in
  c              the control variate: how much of the target is the teacher's own prediction
  available      nats between ρ_a and ρ_(a+h); absorbed is the fraction the student has gained of them
"""

ALIASES = {"--reward": "--reward.function", "--data": "--task.data", "--data-dir": "--task.data-dir"}
"""Short spellings of fields that are often given."""

Command = Callable[[list[str]], int]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _dispatch(arguments)
    except DtmError as problem:
        print(f"dtm: {problem}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        sys.stderr.close()
        return 0
    except OSError as problem:
        print(f"dtm: {problem}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("dtm: interrupted", file=sys.stderr)
        return 130


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if arguments[0] == "--version":
        from importlib import metadata

        print(f"dtm {metadata.version('discrete-tilt-matching')}")
        return 0
    name, rest = arguments[0], arguments[1:]
    if name not in COMMANDS:
        raise ConfigError(f"no command {name!r}. {nearest(name, COMMANDS)}")
    return COMMANDS[name][0](rest)


def _overview() -> str:
    commands = "\n".join(f"  {name:<10} {text}" for name, (_, text) in COMMANDS.items())
    return (
        "usage: dtm COMMAND ...\n\nReward fine-tuning of masked diffusion language models by Discrete Tilt "
        f"Matching.\n\ncommands\n{commands}\n\n`dtm COMMAND --help` explains each.\n\n{SYMBOLS}"
    )


# ── training ─────────────────────────────────────────────────────────────────────────────────────


def _train(arguments: list[str]) -> int:
    options, config = _parse_run("train", arguments)
    if options.dry_run:
        return _dry_run(config, "train")

    from dtm import api
    from dtm.training.display import Display, summary_table

    _foretell(config, "train", options.resume)
    with Display(config) as display:
        run = api.train(config, out=options.out, resume=options.resume, callbacks=[display])
    if not run.is_finished:
        return _stopped(run, "train")
    display.console.print(summary_table(run.summary))
    figures = ", ".join(str(path) for path in sorted(run.folder.figures.glob("*.png")))
    print(f"run:     {run.path}\nmodel:   {run.folder.model}\nfigures: {figures}")
    return 0


def _pretrain(arguments: list[str]) -> int:
    options, config = _parse_run("pretrain", arguments)
    if options.dry_run:
        return _dry_run(config, "pretrain")

    from dtm import api
    from dtm.training.display import PretrainDisplay

    _foretell(config, "pretrain", options.resume)
    with PretrainDisplay() as display:
        run = api.pretrain(config, out=options.out, resume=options.resume, callbacks=[display])
    if not run.is_finished:
        return _stopped(run, "pretrain")
    measures = "  ".join(f"{name} {value:.3f}" for name, value in run.summary.items() if value is not None)
    print(f"{measures}\nmodel: {run.folder.model}")
    print(f"Tilt it with: dtm train {config.recipe} --model.base {run.folder.model}")
    return 0


def _foretell(config: RunConfig, command: Literal["train", "pretrain"], resume: bool) -> None:
    """Without a GPU, say how long it will take before it starts."""
    from dtm.training import build
    from dtm.training.plan import forecast

    if command == "train":
        build.base_folder(config)  # what is missing is said at once
    if build.build_device(config).type == "cpu" and not resume:
        print(
            f"on the CPU: {forecast(config, command)}. Ctrl-C stops and saves, --resume continues.",
            flush=True,
        )


def _stopped(run: Run, command: str) -> int:
    print(f"stopped and saved. Continue with: dtm {command} {run.config.recipe} --resume --out {run.path}")
    return 0


def _parse_run(command: str, arguments: list[str]) -> tuple[argparse.Namespace, RunConfig]:
    """The options of the command itself, and the recipe with file and flags applied in that order."""
    from dtm.recipes import RECIPES, recipe

    recipes = "\n".join(f"  {name:<12} {_first_line(make.__doc__)}" for name, make in RECIPES.items())
    parser = argparse.ArgumentParser(
        prog=f"dtm {command}",
        description=COMMANDS[command][1],
        epilog=f"recipes\n{recipes}\n\n`dtm {command} RECIPE --help` lists every field.\n\n{SYMBOLS}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=not arguments or arguments[0].startswith("-"),
        allow_abbrev=False,
    )
    parser.add_argument("recipe", metavar="RECIPE", help="a recipe's name")
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file with fields to change")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="the run's folder (default: a new one under runs/)"
    )
    parser.add_argument(
        "--resume", action="store_true", help="continue the run in --out, or the recipe's latest"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the resolved plan and stop")
    options, flags = parser.parse_known_args(arguments)
    config = _started(options, command) if options.resume else recipe(options.recipe)
    if options.config is not None:
        from dtm.training.serialise import load_yaml

        config = load_yaml(options.config, config)
    if "-h" in flags or "--help" in flags:
        print(parser.format_usage().rstrip(), "[--any.field VALUE ...]\n")
    return options, _with_flags(config, flags, f"dtm {command} {options.recipe}")


def _with_flags(config: RunConfig, flags: Sequence[str], prog: str) -> RunConfig:
    """The configuration with fields changed as the flags say."""
    import tyro

    from dtm.training.config import RunConfig

    for short, long in ALIASES.items():
        flags = [re.sub(rf"^{short}(?==|$)", long, flag) for flag in flags]
    # A section that can be of several kinds is of the recipe's: its fields are flags like any other.
    markers = (tyro.conf.AvoidSubcommands,)
    return tyro.cli(RunConfig, args=flags, default=config, prog=prog, config=markers)


def _started(options: argparse.Namespace, command: str) -> RunConfig:
    """The configuration of the run that is to be continued."""
    from dtm.training.folder import RunFolder

    out = options.out
    folder = RunFolder.latest(options.recipe, command) if out is None else RunFolder.find(out)
    return folder.read_config()


def _first_line(text: str | None) -> str:
    return (text or "").strip().splitlines()[0]


def _dry_run(config: RunConfig, command: str) -> int:
    from dtm.training.plan import pretraining_plan, training_plan
    from dtm.training.serialise import to_yaml

    print(to_yaml(config))
    plan = training_plan(config) if command == "train" else pretraining_plan(config)
    for name, value in plan.items():
        print(f"{name + ':':<22} {value}")
    return 0


def _sweep(arguments: list[str]) -> int:
    parser = _parser("sweep", "Train a recipe in several settings and with several seeds, some side by side.")
    parser.add_argument("recipe", metavar="RECIPE", help="a recipe's name; further flags change its fields")
    parser.add_argument(
        "--vary",
        action="append",
        default=[],
        metavar="FIELD=V1,V2",
        help="values of a field, e.g. tilt.step=2.5,7.5; give it again for a grid",
    )
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="seeds 0 … N − 1 (default: 3)")
    parser.add_argument("--jobs", type=int, default=1, metavar="J", help="runs side by side (default: 1)")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="folder of the runs (default: runs/RECIPE-sweep)"
    )
    options, flags = parser.parse_known_args(arguments)
    if options.seeds < 1:
        raise ConfigError(f"--seeds must be at least 1, got {options.seeds}")

    from dtm.recipes import recipe

    settings = {
        name: _with_flags(recipe(options.recipe), [*flags, *varied], f"dtm sweep {options.recipe}")
        for name, varied in _grid(options.vary).items()
    }

    from rich.console import Console

    from dtm.sweep import over_seeds, run_all, sweep_table
    from dtm.training.folder import RUNS

    out = options.out or RUNS / f"{options.recipe}-sweep"
    runs = run_all(over_seeds(settings, range(options.seeds)), out, options.jobs)
    Console().print(sweep_table(settings, range(options.seeds), runs))
    print(f"runs: {out}")
    return 0


def _grid(varied: Sequence[str]) -> dict[str, list[str]]:
    """Flags of every combination of the values, under a name made of them."""
    choices: list[list[tuple[str, list[str]]]] = []
    for text in varied:
        field, equals, values = text.partition("=")
        if not (field and equals and values):
            raise ConfigError(f"--vary {text}: write FIELD=V1,V2, for example tilt.step=2.5,7.5")
        choices.append([(f"{field}={value}", [f"--{field}", value]) for value in values.split(",")])
    return {
        " ".join(name for name, _ in combination) or "recipe": [
            flag for _, pair in combination for flag in pair
        ]
        for combination in itertools.product(*choices)
    }


# ── looking at runs ──────────────────────────────────────────────────────────────────────────────


def _eval(arguments: list[str]) -> int:
    parser = _parser("eval", "Decode held-out prompts with a run's model and measure the completions.")
    parser.add_argument("run", metavar="RUN", type=Path, help="a run's folder")
    parser.add_argument(
        "--split",
        choices=["validation", "test"],
        default="test",
        help="which held-out prompts (default: test, which no run has looked at)",
    )
    parser.add_argument("--prompts", type=int, metavar="N", help="prompts (default: as many as the run's)")
    parser.add_argument(
        "--completions", type=int, metavar="K", help="completions of each (default: the run's)"
    )
    parser.add_argument("--base", action="store_true", help="measure the base model beside the tuned one")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the measures to a file")
    options = parser.parse_args(arguments)

    from dataclasses import asdict, replace

    from rich.console import Console

    from dtm import api
    from dtm.training import build
    from dtm.training.display import measures_table
    from dtm.training.folder import write_json

    run = api.Run.open(options.run)
    config = run.config
    asked = {
        name: getattr(options, name)
        for name in ("split", "prompts", "completions")
        if getattr(options, name) is not None
    }
    setting = replace(config.evaluation, **asked)
    models = {"tuned": run.model}
    if options.base:
        models = {"base": build.load_base(config, build.build_task(config)), **models}
    results = {name: api.measure(config, model, setting) for name, model in models.items()}
    Console().print(measures_table(results))
    if options.json is not None:
        rows = {name: {**result.measures, "best": result.best} for name, result in results.items()}
        write_json(
            options.json,
            {"run": str(run.path), **asdict(setting), **rows},
        )
    return 0


def _sample(arguments: list[str]) -> int:
    parser = _parser("sample", "Draw completions from a run's model and show them.")
    parser.add_argument("run", metavar="RUN", type=Path, help="a run's folder")
    parser.add_argument("--prompts", type=int, default=2, metavar="N", help="test prompts (default: 2)")
    parser.add_argument(
        "--completions", type=int, default=1, metavar="K", help="completions of each (default: 1)"
    )
    parser.add_argument("--base", action="store_true", help="sample the base model instead")
    parser.add_argument("--seed", type=int, default=0, help="which prompts and which noise (default: 0)")
    options = parser.parse_args(arguments)

    from dtm import api

    for text in api.Run.open(options.run).sample(
        options.prompts, options.completions, options.base, options.seed
    ):
        print(f"{text}\n")
    return 0


def _grade(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="dtm grade",
        description="Read the answers out of generated texts and judge them. Each row comes back as a line "
        "of JSON with `extracted` and `correct`; the totals are printed on the standard error.",
        epilog="rows: JSON objects with question, ground_truth and generation, one a line\n"
        "exit code: 0 if every row was graded, 1 if some could not be",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("task", metavar="TASK", help="countdown, sudoku, gsm8k or math500")
    parser.add_argument("file", metavar="FILE", help="JSON lines, .gz or not; - reads the standard input")
    parser.add_argument(
        "--rules",
        default="fixed",
        help="whose reading of an answer: d1, spg or dtm for the published ones, quirks included; fixed "
        "(default) without their defects",
    )
    options = parser.parse_args(arguments)

    import json

    from dtm.evaluation.grade import Totals, grade_rows, open_lines

    totals = Totals()
    for graded in grade_rows(options.task, options.rules, open_lines(options.file), totals):
        if isinstance(graded, DtmError):
            print(f"dtm: {options.file}, {graded}", file=sys.stderr)
        else:
            print(json.dumps(graded))
    if not totals.rows + totals.without_gold + totals.errors:
        raise ConfigError(
            f"{options.file} holds no rows of {options.task}. {' '.join(totals.describe()[1:])}"
        )
    for line in totals.describe():
        print(f"{options.task}, rules {options.rules}: {line}", file=sys.stderr)
    return 1 if totals.errors else 0


# ── recipes and claims ───────────────────────────────────────────────────────────────────────────


def _recipes(arguments: list[str]) -> int:
    parser = _parser("recipes", "List the recipes, or print one as YAML: a starting point for --config.")
    parser.add_argument("action", nargs="?", choices=["show"], help="print a recipe")
    parser.add_argument("name", nargs="?", help="its name")
    options = parser.parse_args(arguments)

    from dtm.recipes import RECIPES, recipe

    if options.action is None:
        for name, make in RECIPES.items():
            print(f"{name:<14} {_first_line(make.__doc__)}")
        return 0
    if options.name is None:
        raise ConfigError(f"which recipe? dtm recipes show NAME. {nearest('', RECIPES)}")
    from dtm.training.serialise import to_yaml

    print(to_yaml(recipe(options.name)), end="")
    return 0


def _verify(arguments: list[str]) -> int:
    parser = _parser("verify", "Check the method's claims on worlds small enough to enumerate exactly.")
    parser.add_argument(
        "claims", nargs="*", metavar="CLAIM", help="numbers or names of claims (default: all)"
    )
    options = parser.parse_args(arguments)

    from dtm.claims.table import print_claims

    return print_claims(options.claims or None)


def _parser(name: str, description: str) -> argparse.ArgumentParser:
    return argparse.ArgumentParser(
        prog=f"dtm {name}",
        description=description,
        epilog=SYMBOLS,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )


COMMANDS: dict[str, tuple[Command, str]] = {
    "train": (_train, "Tilt a recipe's base model towards a reward."),
    "pretrain": (_pretrain, "Train a recipe's base model from scratch."),
    "sweep": (_sweep, "Train a recipe in several settings and with several seeds."),
    "eval": (_eval, "Measure a run's model on held-out prompts."),
    "sample": (_sample, "Show completions of a run's model."),
    "grade": (_grade, "Judge generated answers under published or repaired rules."),
    "recipes": (_recipes, "List the recipes, or show one as YAML."),
    "verify": (_verify, "Check the mathematics on exactly enumerable worlds."),
}


if __name__ == "__main__":
    sys.exit(main())
