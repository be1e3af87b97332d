"""`dtm sample`: completions of a run's own prompts, or a model answering a prompt step by step.

``--prompt`` selects the second.
"""

from __future__ import annotations

import argparse

from dtm.cli.parse import make_parser, refuse, refuse_model
from dtm.errors import require

OF_RUNS = ("prompts", "completions", "base")
OF_PROMPTS = ("length", "steps", "block", "temperature", "device", "precision")
"""Options that belong to one of the two kinds of sampling; None where they were not given."""


def sample(arguments: list[str]) -> int:
    """Show completions of a run, or watch a model answer a prompt step by step."""
    options = _sample_parser().parse_args(arguments)
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
        "watch its answer being uncovered.",
    )
    parser.add_argument(
        "model", metavar="MODEL_OR_RUN", help="a run's folder; with --prompt also a model's, or its name"
    )
    parser.add_argument("--seed", type=int, default=0, help="which prompts and which noise (default: 0)")
    runs = parser.add_argument_group("a run's own prompts")
    runs.add_argument("--prompts", type=int, metavar="N", help="test prompts (default: 2)")
    runs.add_argument("--completions", type=int, metavar="K", help="completions of each (default: 1)")
    runs.add_argument("--base", action="store_true", default=None, help="sample the base model instead")
    asked = parser.add_argument_group("a prompt of yours")
    asked.add_argument("--prompt", metavar="TEXT", help="what the model is asked")
    asked.add_argument("--length", type=int, metavar="L", help="tokens of the answer (default: 128)")
    asked.add_argument("--steps", type=int, metavar="N", help="steps to uncover them in (default: L / 2)")
    asked.add_argument(
        "--block", type=int, metavar="B", help="block size (default: 32, or L where it is less)"
    )
    asked.add_argument("--temperature", type=float, metavar="T", help="of the token draws (default: 0)")
    asked.add_argument("--device", choices=["auto", "cpu", "cuda"], help="default: cuda where there is one")
    asked.add_argument("--precision", choices=["auto", "float32", "bfloat16"], help="default: auto")
    return parser


def _denoise(options: argparse.Namespace) -> int:
    length = 128 if options.length is None else options.length
    require(length >= 1, f"--length must be at least 1, got {length}")
    block = min(32, length) if options.block is None else options.block
    require(
        block >= 1 and length % block == 0,
        f"--length {length} must be a multiple of the block of {block} tokens",
    )
    steps = max(1, length // 2) if options.steps is None else options.steps
    require(
        steps >= 1 and length % steps == 0 and block % (length // steps) == 0,
        f"--steps {steps} does not share out {length} tokens evenly over blocks of {block}: each step must "
        "reveal the same whole number of tokens, and blocks must be made of whole steps",
    )

    from rich.console import Console

    from dtm.engine import Decoder, SampledConfidence
    from dtm.engine.frames import frames
    from dtm.evaluation.complete import complete_batch
    from dtm.evaluation.subject import Source, Subject
    from dtm.report.denoising import show

    decoder = Decoder(
        order=SampledConfidence(),
        block=block,
        tokens_per_step=length // steps,
        temperature=options.temperature or 0.0,
    )
    source = Source.find(options.model)
    subject = Subject.load(source, options.device or "auto", options.precision or "auto")
    asked = subject.chat.ask(options.prompt)
    with subject.autocast():
        done = complete_batch(subject.model, [asked], length, decoder, subject.device, options.seed)
    replay = list(frames(done.tokens[0, -length:].cpu(), done.revealed_at[0, -length:].cpu()))
    show(replay, subject.chat.read, Console())
    return 0
