"""One part of a corpus: a source of chat rows."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import NamedTuple, Protocol, runtime_checkable

from dtm.tasks.language.tokenizer import Messages


class Piece(NamedTuple):
    """A piece of an answer."""

    text: str
    is_learnt: bool
    """Whether the model learns to write it; otherwise it only reads it."""


class Example(NamedTuple):
    """A prompt and the answer to learn, in one or more pieces."""

    prompt: Messages
    pieces: tuple[Piece, ...]

    @classmethod
    def of(cls, prompt: Messages, answer: str) -> Example:
        """A prompt with an answer that is learnt as a whole."""
        return cls(prompt, (Piece(answer, True),))

    @property
    def answer(self) -> str:
        """The whole answer."""
        return "".join(piece.text for piece in self.pieces)


@runtime_checkable
class Part(Protocol):
    """Draws chat rows."""

    def draw(self, random: Random, right: float) -> Example:
        """One row; a share ``right`` of the answers to tasks is worked out, the others do not try."""
        ...


def answer_block(answer: str) -> str:
    """An answer as the benchmarks' prompts ask for it, without reasoning."""
    return f"<answer>\n{answer}\n</answer>"


def reasoned(work: str, answer: str) -> str:
    """An answer as the benchmarks' prompts ask for it, with reasoning."""
    return f"<reasoning>\n{work}\n</reasoning>\n{answer_block(answer)}"


def pieces(lines: Iterable[tuple[str, str]]) -> tuple[Piece, ...]:
    """Many small questions, which are only read, each with its answer."""
    return tuple(piece for asked, told in lines for piece in (Piece(asked, False), Piece(told, True)))
