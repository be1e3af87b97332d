"""Options of the commands that prompt a model (chat, sample), and its answer with the decoding steps."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dtm.errors import require

if TYPE_CHECKING:
    from dtm.engine import Decoder
    from dtm.engine.frames import Frame
    from dtm.evaluation.subject import ModelFiles, Subject
    from dtm.tasks.language.tokenizer import Messages

LENGTH, BLOCK = 128, 32
"""Default length of an answer and of a block, in tokens."""


def add_options(add: Callable[..., object]) -> None:
    """Add the options of decoding with ``add``, an ``add_argument``; an option that is not given is None."""
    add("--length", type=int, metavar="L", help=f"tokens of the answer (default: {LENGTH})")
    add("--steps", type=int, metavar="N", help="decoding steps (default: L / 2)")
    add(
        "--block",
        type=int,
        metavar="B",
        help=f"tokens per block (default: {BLOCK}, at most L; a block-causal model has its own)",
    )
    add("--temperature", type=float, metavar="T", help="sampling temperature (default: 0)")
    add("--device", choices=["auto", "cpu", "cuda"], help="default: cuda where there is one")
    add("--precision", choices=["auto", "float32", "bfloat16"], help="default: auto")
    add_model_options(add)


MODEL = ("model.mask_token", "model.attention", "model.block")
"""Options of `add_model_options`; None where they were not given."""


def add_model_options(add: Callable[..., object]) -> None:
    """Add the flags of `dtm train` for settings that a model's files may lack."""
    add("--model.mask-token", dest=MODEL[0], metavar="TOKEN", help="mask token, by id or text")
    add("--model.attention", dest=MODEL[1], choices=["full", "block"], help="attention of the model")
    add("--model.block", dest=MODEL[2], type=int, metavar="B", help="tokens per block of block attention")


def find_source(options: argparse.Namespace, adapter: str | None = None) -> ModelFiles:
    """Find the model that the options name, with their settings and, if given, an ``adapter``."""
    from dtm.evaluation.subject import ModelFiles
    from dtm.models.families.settings import Asked

    token, attention, block = (getattr(options, name) for name in MODEL)
    source = ModelFiles.find(options.model)
    if (token, attention, block) != (None, None, None):
        require(source.run is None, f"{options.model} is a run, which states its model's settings itself")
        source = replace(source, asked=Asked(mask_token=token, attention=attention or "stored", block=block))
    return source if adapter is None else source.with_adapter(adapter)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer, and the states of its decoding step by step."""

    text: str
    frames: list[Frame]


@dataclass(frozen=True, slots=True)
class Speaker:
    """A model with its decoder and the length of its answers."""

    subject: Subject
    decoder: Decoder
    length: int

    @classmethod
    def load(cls, source: ModelFiles, options: argparse.Namespace) -> Speaker:
        """Load the model of a source, with the decoder of the options; check these first."""
        from dtm.evaluation.subject import Subject
        from dtm.models.families import read_shape

        length = LENGTH if options.length is None else options.length
        block = read_shape(source.weights, source.asked)[1].attention_block
        decoder = decoder_of(options, length, block, options.temperature or 0.0)
        subject = Subject.load(source, options.device or "auto", options.precision or "auto")
        return cls(subject, decoder, length)

    def answer(self, messages: Messages, seed: int) -> Answer:
        """Complete a conversation; tokens after the end of the answer count as end tokens."""
        from dtm.engine.frames import frames
        from dtm.evaluation.complete import complete_batch

        subject, length = self.subject, self.length
        asked = subject.chat.ask(messages)
        with subject.autocast():
            done = complete_batch(subject.model, [asked], length, self.decoder, subject.device, seed)
        written = done.is_completion[0]
        tokens, steps = (each[0, written][:length].cpu() for each in (done.tokens, done.revealed_at))
        ended = (tokens == subject.model.eos_id).cumsum(0) > 0
        tokens = tokens.masked_fill(ended, subject.model.eos_id)
        return Answer(subject.chat.read(tokens[~ended].tolist()).strip(), list(frames(tokens, steps)))


def decoder_of(
    options: argparse.Namespace, length: int, attention_block: int | None, temperature: float
) -> Decoder:
    """Return the decoder of the options; a block-causal model sets the block size."""
    require(length >= 1, f"--length must be at least 1, got {length}")
    block = (attention_block or min(BLOCK, length)) if options.block is None else options.block
    require(
        attention_block in (None, block),
        f"--block {block}: this model attends in blocks of {attention_block} tokens and must be decoded in "
        "the same blocks. Leave --block out",
    )
    require(
        block >= 1 and length % block == 0,
        f"--length {length} must be a multiple of the block of {block} tokens",
    )
    steps = length // (1 if block % 2 else 2) if options.steps is None else options.steps
    require(
        steps >= 1 and length % steps == 0 and block % (length // steps) == 0,
        f"--steps {steps}: each step must reveal the same number of tokens, and a block must take a whole "
        f"number of steps. With --length {length}, length / steps must be a whole divisor of {block}",
    )

    from dtm.engine import Decoder, SampledConfidence

    return Decoder(
        order=SampledConfidence(),
        block=block,
        tokens_per_step=length // steps,
        temperature=temperature,
        cache="prefix",
        until_end=True,
    )
