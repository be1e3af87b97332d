"""Convert text to token ids and back, with a model's tokenizer and chat template, without a network.

Two silent errors are checked: a second start-of-text token that a tokenizer adds to a template that already
has one, and token ids outside the model's vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from dtm.errors import CheckpointError, DataError, require
from dtm.models.tokenizers import load_tokenizer
from dtm.workers import Gone, Late, Worker

Messages = str | Sequence[dict[str, str]]
"""A user's message, or a conversation as {"role": …, "content": …}."""


PLACEHOLDER = "THE USER WRITES HERE"
"""A marker message, to find its place in a rendered template."""
TEMPLATE_SECONDS = 20.0
"""Deadline for a template to render one message, in seconds."""


class Chat:
    """A tokenizer and its chat template."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    @classmethod
    def load(cls, folder: str | Path) -> Chat:
        """Load the tokenizer of a model's folder; nothing is downloaded and no code of the folder is run."""
        tokenizer = load_tokenizer(Path(folder))
        require(
            tokenizer.chat_template is not None,
            f"the tokenizer in {folder} has no chat template: put one into its tokenizer_config.json, or "
            "beside it as chat_template.jinja",
        )
        chat = cls(tokenizer)
        chat._try(str(folder))
        return chat

    def _try(self, folder: str) -> None:
        """Render, encode and decode a message in another process, since a template may hang or fail."""

        def serve(connection: Connection) -> None:
            connection.send("ready")
            try:
                self.read(self.ask(connection.recv()))
                connection.send(None)
            except DataError as problem:
                connection.send(str(problem))
            except Exception as problem:  # a damaged file can make the library raise anything
                connection.send(f"it fails with {type(problem).__name__}: {problem}")

        worker = Worker(serve)
        try:
            flaw = worker.ask(PLACEHOLDER, TEMPLATE_SECONDS)
        except (Late, Gone):
            flaw = f"the chat template did not render a message within {TEMPLATE_SECONDS:g} s"
        finally:
            worker.close()
        require(flaw is None, f"the tokenizer in {folder}: {flaw}", CheckpointError)

    def __len__(self) -> int:
        return len(self._tokenizer)

    def ask(self, messages: Messages, prefill: str = "") -> list[int]:
        """Return the token ids of a conversation up to the assistant's turn, with the answer's prefill."""
        ids = self.encode([self.render(messages) + prefill])[0]
        require(bool(ids), "the tokenizer makes no tokens of a rendered message", DataError)
        return ids

    def render(self, messages: Messages) -> str:
        """Render a conversation with the template, up to the assistant's turn; empty text is an error."""
        turns = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
        try:
            text: str = self._tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        except Exception as problem:  # a template may raise any error
            raise DataError(f"the chat template failed with {type(problem).__name__}: {problem}") from None
        require(
            bool(text.strip()),
            "the chat template renders nothing: put the model's own into tokenizer_config.json or "
            "chat_template.jinja",
            DataError,
        )
        return text

    def user_turn(self) -> list[int]:
        """Return the template's text before the user's message."""
        return self.encode([self.render(PLACEHOLDER).partition(PLACEHOLDER)[0]])[0]

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of texts, without added tokens."""
        ids: list[list[int]] = self._tokenizer(list(texts), add_special_tokens=False)["input_ids"]
        return ids

    def read(self, ids: Sequence[int], special: bool = False) -> str:
        """Decode token ids to text, by default without special tokens, which some published parsers read."""
        text: str = self._tokenizer.decode(ids, skip_special_tokens=not special)
        return text
