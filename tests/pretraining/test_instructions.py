"""Instructions that the source model writes and answers."""

from __future__ import annotations

import pytest
import torch

from dtm.errors import DataError
from dtm.models.source import load_causal
from dtm.pretraining import instructions
from dtm.pretraining.instructions import write_instructions
from dtm.tasks.language.tokenizer import Chat


@pytest.fixture
def source(write_source):
    """An autoregressive model that writes a few letters and, in one of ten tokens, the end of a turn."""
    pytest.importorskip("transformers")
    found = load_causal(write_source("llama"))
    letters = found.tokenizer.convert_tokens_to_ids(list("abcdefghi"))
    with torch.no_grad():  # a channel that is always large decides
        found.model.embedding.weight[:, 0] = 10.0
        found.model.unembedding.weight.zero_()
        found.model.unembedding.weight[[found.eos_id, *letters], 0] = 1.0
    return found


def test_the_source_writes_instructions_and_answers_them(source, monkeypatch):
    monkeypatch.setattr(instructions, "SHORTEST", 3)
    monkeypatch.setattr(instructions, "ASKED", 24)
    monkeypatch.setattr(instructions, "ANSWERED", 24)
    chat = Chat(source.tokenizer)
    rows = write_instructions(source.model, chat, 24, seed=0, batch=8)
    assert 4 < len(rows) < 24  # some do not end, or are too short
    assert rows == write_instructions(source.model, chat, 24, seed=0, batch=8)
    assert rows != write_instructions(source.model, chat, 24, seed=1, batch=8)
    prompts = [row.prompt for row in rows]
    assert len(set(prompts)) == len(prompts)
    assert all(len(row.prompt) >= 3 and row.answer for row in rows)
    assert "<" not in "".join(row.prompt + row.answer for row in rows)


def test_a_source_without_a_usable_instruction_is_named(source, monkeypatch):
    monkeypatch.setattr(instructions, "SHORTEST", 100)
    with pytest.raises(DataError, match=r"no usable instruction; give your own rows: --corpus\.general 0"):
        write_instructions(source.model, Chat(source.tokenizer), 4, seed=0, batch=4)


def test_writing_instructions_can_be_stopped_at_any_token(source, monkeypatch):
    monkeypatch.setattr(instructions, "ASKED", 24)
    passes = []
    source.model.on_pass = lambda *_: passes.append(None)

    def stop() -> None:
        if len(passes) == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_instructions(source.model, Chat(source.tokenizer), 24, seed=0, batch=24, between=stop)
    assert len(passes) == 5  # no pass is made after the one that was asked to be the last
