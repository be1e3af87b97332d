"""`dtm eval`: measure a run on its own held-out prompts, or any model under a published protocol.

``--task`` selects the latter; ``--explain`` compares two of its results.
"""

from __future__ import annotations

import argparse
import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING

from dtm.cli.asking import MODEL, add_model_options, find_source
from dtm.cli.parse import PROCESSES_HELP, make_parser, refuse, refuse_model
from dtm.errors import ConfigError, require

if TYPE_CHECKING:
    from dtm.evaluation.protocol import Examination, Outcome
    from dtm.evaluation.subject import ModelFiles, Subject

STDOUT = Path("-")
"""The value of --json that means standard output."""
HELD_OUT = ("split", "prompts", "completions", "base")
PUBLISHED = (
    *("length", "protocol", "data_dir", "limit", "batch", "until_end"),
    *("device", "precision", "nf4", "adapter"),
    *MODEL,
)
"""Options of only one of the two evaluations; an option that is not given is None."""


def evaluate(arguments: list[str]) -> int:
    """Measure a run on held-out prompts, or a model under a published protocol."""
    options = _parser().parse_args(arguments)
    if options.explain is not None:
        from dtm.evaluation.explain import explain

        print(explain(*options.explain))
        return 0
    require(options.model is not None, "dtm eval needs a run's folder, or a model's folder or name")
    if options.task is not None:
        refuse(options, HELD_OUT, "is for runs, without --task")
        return _published(options)
    refuse(options, PUBLISHED, "needs --task")
    return _held_out(options)


def _parser() -> argparse.ArgumentParser:
    parser = make_parser(
        "eval",
        "Decode held-out prompts with a run's model and measure the completions; or, with --task, evaluate\n"
        "a model on a benchmark exactly as a published protocol does.",
    )
    parser.add_argument(
        "model",
        metavar="MODEL_OR_RUN",
        nargs="?",
        help="a run's folder; with --task also a model's folder or name",
    )
    parser.add_argument(
        "--json",
        type=Path,
        metavar="OUT",
        help="write the measures to a file (or folder); - writes them to standard output",
    )
    parser.add_argument("--processes", type=int, metavar="N", help=PROCESSES_HELP)  # taken by `dtm.cli.main`
    runs = parser.add_argument_group("a run's own held-out prompts")
    runs.add_argument(
        "--split",
        choices=["validation", "test"],
        help="held-out prompts to measure on (default: test, which no run uses)",
    )
    runs.add_argument("--prompts", type=int, metavar="N", help="number of prompts (default: the run's)")
    runs.add_argument("--completions", type=int, metavar="K", help="completions per prompt (default: run's)")
    runs.add_argument("--base", action="store_true", default=None, help="measure the base model too")
    published = parser.add_argument_group("published protocols")
    published.add_argument("--task", help="countdown, sudoku, gsm8k or math500")
    published.add_argument(
        "--adapter", metavar="ADAPTER", help="a PEFT adapter for the model: a folder or a hub name"
    )
    add_model_options(published.add_argument)
    published.add_argument("--protocol", help="dtm, spg or d1: prompts, prefill and parser (default: dtm)")
    published.add_argument(
        "--length",
        type=int,
        nargs="+",
        metavar="L",
        help="tokens of a completion, e.g. 256 512 (default: 256)",
    )
    published.add_argument(
        "--data-dir", type=Path, metavar="DIR", help="folder of the data sets, or hub (default: the run's)"
    )
    published.add_argument("--limit", type=int, metavar="N", help="the first N items (default: all)")
    published.add_argument(
        "--batch", type=int, metavar="N", help="rows per batch on a GPU (default: 8; on a CPU always 1)"
    )
    published.add_argument(
        "--until-end",
        action="store_true",
        default=None,
        help="stop a row after the block with its end token: faster, but text after that block is lost",
    )
    published.add_argument(
        "--device", choices=["auto", "cpu", "cuda"], help="default: cuda where there is one"
    )
    published.add_argument(
        "--precision",
        choices=["auto", "float32", "bfloat16"],
        help="default: bfloat16 on a GPU, else float32",
    )
    published.add_argument(
        "--nf4",
        choices=["on", "off"],
        help="base weights in four bits (default: as in the run's training; else off)",
    )
    parser.add_argument(
        "--explain", type=Path, nargs=2, metavar=("A.json", "B.json"), help="print why two results differ"
    )
    return parser


def _held_out(options: argparse.Namespace) -> int:
    from dataclasses import asdict, replace

    from rich.console import Console

    from dtm import api
    from dtm.distributed import current
    from dtm.evaluation.evaluate import before_repeats, held_out
    from dtm.models.transformer import Transformer
    from dtm.report.display import measures_table
    from dtm.runs.folder import make_folder
    from dtm.tasks.language import LanguageTask
    from dtm.writing import write_json

    piped = options.json == STDOUT
    console = Console(stderr=piped)

    refuse_model(options.model, "name the task with --task TASK")
    if options.json is not None and not piped:
        make_folder(options.json.parent)
    run = api.Run.open(options.model)
    assembly = run.assembly
    config = assembly.config
    given = {name: getattr(options, name) for name in ("prompts", "completions")}
    asked = {name: value for name, value in given.items() if value is not None}
    setting = replace(config.evaluation, split=options.split or "test", **asked)
    models = {"tuned": run.checked_model()}
    if options.base:
        models = {"base": assembly.base, **models}
    there = before_repeats(held_out(assembly.task, setting))
    if there < setting.prompts:
        console.print(
            f"the {setting.split} split has {there} prompts, not {setting.prompts}; each is used once. For "
            "more answers, raise --completions",
            highlight=False,
            soft_wrap=True,
        )
        setting = replace(setting, prompts=there)
    results = {name: api.measure(assembly, model, setting) for name, model in models.items()}
    console.print(measures_table(results))
    costs: dict[str, float] = {}
    if options.base and isinstance(assembly.task, LanguageTask) and isinstance(models["tuned"], Transformer):
        costs = api.tuning_cost(assembly, models["tuned"], setting)
        listed = ", ".join(f"{name} {value:.3f}" for name, value in costs.items())
        console.print(f"nats per sequence: {listed}", highlight=False, soft_wrap=True)
    if options.json is not None:
        rows = {name: {**result.measures, "best": result.best} for name, result in results.items()}
        cost = {"cost": costs} if costs else {}
        found = {"run": str(run.path), **asdict(setting), **rows, **cost}
        if piped:
            print(json.dumps(found, indent=2))
        else:
            current().by_first(lambda: write_json(options.json, found))
    return 0


def _published(options: argparse.Namespace) -> int:
    from dataclasses import replace

    from rich.console import Console

    from dtm.distributed import current
    from dtm.evaluation.protocol import Examination
    from dtm.evaluation.results import FOLDER, as_json, place, write_outcome
    from dtm.evaluation.subject import Subject
    from dtm.tasks.data import is_generated
    from dtm.tasks.language import BENCHMARKS

    names = ("protocol", "limit", "batch", "until_end")
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    exams = [Examination(task=options.task, length=length, **given) for length in options.length or [256]]
    source = find_source(options, options.adapter)
    if options.nf4 is not None:
        source = replace(source, nf4=options.nf4 == "on")
    data = options.data_dir or _data_of(source)
    require(
        not is_generated(data),
        f"--task {options.task} measures on published items, not on generated ones: name their folder with "
        "--data-dir. To measure on a run's own items: dtm eval RUN without --task",
    )
    piped = options.json == STDOUT
    out: Path | None = None if piped else options.json
    if out is None and source.run is not None:
        out = source.run.path / FOLDER
    # Missing files are reported before weights are loaded, and each result is saved at once.
    places = [None if out is None else place(exam, source.name, out, len(exams)) for exam in exams]
    BENCHMARKS[options.task].test(data)
    group = current()
    subject = Subject.load(source, options.device or "auto", options.precision or "auto")
    outcomes = []
    for exam, path in zip(exams, places, strict=True):
        outcomes.append(_examine(subject, exam, data))
        if path is not None:
            group.by_first(functools.partial(write_outcome, outcomes[-1], path))
    console = Console(stderr=piped)
    console.print(
        f"{options.task}, protocol {exams[0].protocol}, {len(outcomes[0].rows)} items", highlight=False
    )
    console.print(_table(outcomes))
    for path in filter(None, places):
        console.print(f"result: {path}", highlight=False, soft_wrap=True)
    if piped:
        print(json.dumps([as_json(outcome) for outcome in outcomes], indent=2))
    return 0


def _data_of(source: ModelFiles) -> Path:
    """Return the folder of the data sets that a run was trained with."""
    named = None if source.run is None else getattr(source.run.read_config().task, "data_dir", None)
    if named is None:
        raise ConfigError(
            "the benchmarks' data sets are not part of the package: name their folder with --data-dir, or "
            "hub to download GSM8K and MATH500"
        )
    return Path(named)


def _examine(subject: Subject, exam: Examination, data: Path) -> Outcome:
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from dtm.distributed import current
    from dtm.evaluation.protocol import examine

    # The progress bar goes to stderr and only to a terminal, so that stdout can be redirected.
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not (console.is_terminal and current().is_first)
    ) as bar:
        job = bar.add_task(f"{exam.task}, {exam.length} tokens", total=None)

        def advance(rows: int, items: int) -> None:
            bar.update(job, advance=rows, total=items)

        return examine(subject, exam, data, advance, current())


def _table(outcomes: list[Outcome]) -> object:
    from rich.table import Table

    table = Table("tokens", *(str(outcome.asked.length) for outcome in outcomes))
    for name in outcomes[0].measures:
        values = (outcome.measures[name] for outcome in outcomes)
        table.add_row(name, *(f"{value:.1f}" if name == "length" else f"{value:.1%}" for value in values))
    return table
