"""`dtm sample`: completions of a run's own prompts, or a model answering a prompt step by step.

``--prompt`` selects the second. With ``--best-of`` or ``--smc`` a reward steers them (`dtm.cli.steering`).
"""

from __future__ import annotations

import argparse

from dtm.cli import steering
from dtm.cli.asking import MODEL, Speaker, add_options, find_source
from dtm.cli.parse import make_parser, refuse, refuse_model, seed

OF_RUNS = ("prompts", "completions", "base")
OF_PROMPTS = ("length", "steps", "block", "temperature", "device", "precision", *MODEL)
"""Options that belong to one of the two kinds of sampling; None where they were not given."""


def sample(arguments: list[str]) -> int:
    """Show completions of a run, or watch a model answer a prompt step by step."""
    options = _sample_parser().parse_args(arguments)
    if options.best_of is not None or options.smc is not None:
        return steering.steer(options)
    refuse(options, steering.OPTIONS, "steers: it needs --best-of N or --smc N")
    if options.prompt is not None:
        refuse(options, OF_RUNS, "is for runs, without --prompt")
        return _denoise(options)
    refuse(options, OF_PROMPTS, "needs --prompt")

    from dtm import api

    refuse_model(options.model, "say what it is asked with --prompt")
    for text in api.Run.open(options.model).sample(
        2 if options.prompts is None else options.prompts,
        1 if options.completions is None else options.completions,
        bool(options.base),
        options.seed,
    ):
        print(f"{text}\n")
    return 0


def _sample_parser() -> argparse.ArgumentParser:
    parser = make_parser(
        "sample",
        "Draw completions from a run's model and show them; or, with --prompt, ask a model something and\n"
        "watch its answer being uncovered. With --best-of or --smc a reward steers the draws: that of the\n"
        "run, of a task, or yours.",
    )
    parser.add_argument(
        "model", metavar="MODEL_OR_RUN", help="a run's folder; with --prompt also a model's, or its name"
    )
    parser.add_argument("--seed", type=seed, default=0, help="which prompts and which noise (default: 0)")
    runs = parser.add_argument_group("a run's own prompts")
    runs.add_argument("--prompts", type=int, metavar="N", help="test prompts (default: 2)")
    runs.add_argument("--completions", type=int, metavar="K", help="completions of each (default: 1)")
    runs.add_argument("--base", action="store_true", default=None, help="sample the base model instead")
    asked = parser.add_argument_group("a prompt of yours")
    asked.add_argument("--prompt", metavar="TEXT", help="what the model is asked")
    add_options(asked.add_argument)
    steering.add_steering(parser.add_argument_group("steering by a reward").add_argument)
    return parser


def _denoise(options: argparse.Namespace) -> int:
    from rich.console import Console

    from dtm.report.denoising import show

    speaker = Speaker.load(find_source(options), options)
    show(speaker.answer(options.prompt, options.seed).frames, speaker.subject.chat.read, Console())
    return 0
