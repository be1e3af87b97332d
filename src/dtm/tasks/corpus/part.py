"""One part of a corpus: a source of chat rows."""

from __future__ import annotations

from random import Random
from typing import NamedTuple, Protocol, runtime_checkable

from dtm.tasks.language.tokenizer import Messages


class Example(NamedTuple):
    """A prompt and the answer to learn."""

    prompt: Messages
    answer: str


@runtime_checkable
class Part(Protocol):
    """Draws chat rows."""

    def draw(self, random: Random, right: float) -> Example:
        """One row; a share ``right`` of the answers to tasks is right, the others are careless."""
        ...


def answer_block(answer: str) -> str:
    """An answer as the benchmarks' prompts ask for it, without reasoning."""
    return f"<answer>\n{answer}\n</answer>"
