"""The interface of a part of the corpus, which draws chat rows."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import NamedTuple, Protocol, runtime_checkable

from dtm.tasks.language.tokenizer import Messages


class Piece(NamedTuple):
    """A piece of an answer."""

    text: str
    is_learnt: bool
    """Whether the piece is scored in training; otherwise it is only context."""


REASONING = "<reasoning>\n"
"""Start of an answer that is worked out."""
BEGUN_SHARE = 0.6
"""Share of Countdown and GSM8K rows in which `REASONING` is given and the work is learnt. They teach to work
well, not how often to work."""


class Example(NamedTuple):
    """A prompt and the answer to learn, in one or more pieces."""

    prompt: Messages
    pieces: tuple[Piece, ...]
    begun: str = ""
    """Start of the answer that is given with the prompt, not learnt."""

    @classmethod
    def of(cls, prompt: Messages, answer: str) -> Example:
        """Make an example whose whole answer is learnt."""
        return cls(prompt, (Piece(answer, True),))

    @classmethod
    def worked(cls, prompt: Messages, answer: str) -> Example:
        """Make an example of an answer by `reasoned`: `REASONING` is given, and the rest is learnt."""
        return cls(prompt, (Piece(answer.removeprefix(REASONING), True),), REASONING)

    @property
    def answer(self) -> str:
        """The whole answer."""
        return self.begun + "".join(piece.text for piece in self.pieces)


@runtime_checkable
class Part(Protocol):
    """Interface of a part, which draws chat rows."""

    def draw(self, random: Random, right: float) -> Example:
        """Draw one row.

        ``right``: the share of right answers at this time of the training, for parts in which it changes.
        """
        ...


def answer_block(answer: str) -> str:
    """Format an answer as the benchmarks' prompts require, without reasoning."""
    return f"<answer>\n{answer}\n</answer>"


def reasoned(work: str, answer: str) -> str:
    """Format an answer as the benchmarks' prompts require, with reasoning."""
    return f"{REASONING}{work}\n</reasoning>\n{answer_block(answer)}"


def pieces(lines: Iterable[tuple[str, str]]) -> tuple[Piece, ...]:
    """Join small questions, which are only context, with their answers, which are learnt."""
    return tuple(piece for asked, told in lines for piece in (Piece(asked, False), Piece(told, True)))
