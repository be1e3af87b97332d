"""Text to token ids and back, with a model's own tokenizer and chat template, without a network.

Two things go wrong silently elsewhere and are checked here: a second start-of-text that a tokenizer adds to
a template that has one already, and token ids that the model does not have.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dtm.errors import ConfigError, require

Messages = str | Sequence[dict[str, str]]
"""A user's message, or a conversation as {"role": …, "content": …}."""
PARTS = ("vocab.json", "merges.txt")
"""Files of Dream on the hub in place of a tokenizer.json: those of Qwen2's tokenizer."""


PLACEHOLDER = "THE USER WRITES HERE"
"""A message to find in a rendered template."""


class Chat:
    """A tokenizer and its chat template."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    @classmethod
    def load(cls, folder: str | Path) -> Chat:
        """The tokenizer of a model's folder; nothing is downloaded and no code of the folder is run."""
        try:
            # AutoTokenizer would look for model code.
            from transformers import PreTrainedTokenizerFast, Qwen2Tokenizer
        except ImportError:
            raise ConfigError("text needs a tokenizer: pip install 'discrete-tilt-matching[text]'") from None
        path = Path(folder)
        whole = (path / "tokenizer.json").is_file()
        lost = [name for name in PARTS if not (path / name).is_file()]
        require(
            whole or not lost,
            f"no tokenizer in {path}: tokenizer.json is missing, and so is {' and '.join(lost)}, which Dream "
            "has instead. On the hub it lies beside the weights.",
        )
        kind = PreTrainedTokenizerFast if whole else Qwen2Tokenizer
        tokenizer = kind.from_pretrained(path, local_files_only=True)
        require(
            tokenizer.chat_template is not None,
            f"the tokenizer in {path} has no chat template: put one into its tokenizer_config.json, or "
            "beside it as chat_template.jinja",
        )
        return cls(tokenizer)

    def __len__(self) -> int:
        return len(self._tokenizer)

    def ask(self, messages: Messages, prefill: str = "") -> list[int]:
        """A conversation up to where the assistant writes, and the text that the answer begins with."""
        return self.encode([self.render(messages) + prefill])[0]

    def render(self, messages: Messages) -> str:
        """A conversation in the template's text, up to where the assistant writes."""
        turns = [{"role": "user", "content": messages}] if isinstance(messages, str) else list(messages)
        text: str = self._tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
        return text

    def user_turn(self) -> list[int]:
        """The template up to where the user writes."""
        return self.encode([self.render(PLACEHOLDER).partition(PLACEHOLDER)[0]])[0]

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Token ids of texts; none is added."""
        ids: list[list[int]] = self._tokenizer(list(texts), add_special_tokens=False)["input_ids"]
        return ids

    def read(self, ids: Sequence[int], special: bool = False) -> str:
        """Text, without special tokens unless they are asked for: published parsers read them."""
        text: str = self._tokenizer.decode(ids, skip_special_tokens=not special)
        return text
