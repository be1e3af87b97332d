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


class Example(NamedTuple):
    """A prompt and the answer to learn, in one or more pieces."""

    prompt: Messages
    pieces: tuple[Piece, ...]

    @classmethod
    def of(cls, prompt: Messages, answer: str) -> Example:
        """Make an example whose whole answer is learnt."""
        return cls(prompt, (Piece(answer, True),))

    @property
    def answer(self) -> str:
        """The whole answer."""
        return "".join(piece.text for piece in self.pieces)


@runtime_checkable
class Part(Protocol):
    """Interface of a part, which draws chat rows."""

    def draw(self, random: Random, right: float) -> Example:
        """Draw one row; a share ``right`` of the answers to tasks is worked out, the others do not try."""
        ...


def answer_block(answer: str) -> str:
    """Format an answer as the benchmarks' prompts require, without reasoning."""
    return f"<answer>\n{answer}\n</answer>"


def reasoned(work: str, answer: str) -> str:
    """Format an answer as the benchmarks' prompts require, with reasoning."""
    return f"<reasoning>\n{work}\n</reasoning>\n{answer_block(answer)}"


def pieces(lines: Iterable[tuple[str, str]]) -> tuple[Piece, ...]:
    """Join small questions, which are only context, with their answers, which are learnt."""
    return tuple(piece for asked, told in lines for piece in (Piece(asked, False), Piece(told, True)))
