"""`dtm sample`: draw completions of a run's own prompts, or watch a model decode the answer to a prompt.

``--prompt`` selects the latter. With ``--best-of`` or ``--smc`` a reward steers them (`dtm.cli.steering`).
"""

from __future__ import annotations

import argparse

from dtm.cli import steering
from dtm.cli.asking import MODEL, Speaker, add_options, find_source
from dtm.cli.parse import make_parser, refuse, refuse_model, seed

OF_RUNS = ("prompts", "completions", "base")
OF_PROMPTS = ("length", "steps", "block", "temperature", "device", "precision", *MODEL)
"""Options of only one of the two kinds of sampling; an option that is not given is None."""


def sample(arguments: list[str]) -> int:
    """Show completions of a run, or watch a model answer a prompt step by step."""
    options = _sample_parser().parse_args(arguments)
    if options.best_of is not None or options.smc is not None:
        return steering.steer(options)
    refuse(options, steering.OPTIONS, "needs --best-of N or --smc N (--best-of 1: plain answers)")
    if options.prompt is not None:
        refuse(options, OF_RUNS, "is for runs, without --prompt")
        return _denoise(options)
    refuse(options, OF_PROMPTS, "needs --prompt")

    from dtm import api

    refuse_model(options.model, "give the question with --prompt TEXT")
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
        "Draw completions from a run's model and show them; or, with --prompt, watch how a model decodes\n"
        "the answer to a prompt. With --best-of or --smc a reward steers the draws: that of the run, of a\n"
        "task, or your own.",
    )
    parser.add_argument(
        "model", metavar="MODEL_OR_RUN", help="a run's folder; with --prompt also a model's folder or name"
    )
    parser.add_argument("--seed", type=seed, default=0, help="seed of prompts and draws (default: 0)")
    runs = parser.add_argument_group("a run's own prompts")
    runs.add_argument("--prompts", type=int, metavar="N", help="test prompts (default: 2)")
    runs.add_argument("--completions", type=int, metavar="K", help="completions per prompt (default: 1)")
    runs.add_argument("--base", action="store_true", default=None, help="sample the base model instead")
    asked = parser.add_argument_group("your own prompt")
    asked.add_argument("--prompt", metavar="TEXT", help="the question to the model")
    add_options(asked.add_argument)
    steering.add_steering(parser.add_argument_group("steering by a reward").add_argument)
    return parser


def _denoise(options: argparse.Namespace) -> int:
    from rich.console import Console

    from dtm.report.denoising import show

    speaker = Speaker.load(find_source(options), options)
    show(speaker.answer(options.prompt, options.seed).frames, speaker.subject.chat.read, Console())
    return 0
