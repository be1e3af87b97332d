"""Rows that the source writes, and rows from a file."""

from __future__ import annotations

from random import Random

import pytest
import torch

from dtm.errors import DataError
from dtm.models.source import load_causal
from dtm.tasks.corpus import general
from dtm.tasks.corpus.general import Rows, read_rows, save_rows, write_instructions
from dtm.tasks.corpus.part import Example, pieces
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
    monkeypatch.setattr(general, "SHORTEST", 3)
    monkeypatch.setattr(general, "ASKED", 24)
    monkeypatch.setattr(general, "ANSWERED", 24)
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
    monkeypatch.setattr(general, "SHORTEST", 100)
    with pytest.raises(DataError, match="wrote no usable instruction; give your own rows with --data"):
        write_instructions(source.model, Chat(source.tokenizer), 4, seed=0, batch=4)


def test_rows_are_saved_and_read_again(tmp_path):
    rows = [
        Example.of("What is ½?\nTell me.", "A half."),
        Example.of([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}], "Hello"),
    ]
    save_rows(rows, tmp_path / "rows.jsonl")
    assert read_rows(tmp_path / "rows.jsonl") == rows
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]
    save_rows([Example("?", pieces([("1+1=", "2")]))], tmp_path / "rows.jsonl")
    assert read_rows(tmp_path / "rows.jsonl") == [Example.of("?", "1+1=2")]
    separator = '{"prompt": "a\u2028b", "completion": "c"}'  # is no end of a line in JSON
    (tmp_path / "rows.jsonl").write_text(separator, encoding="utf-8")
    assert read_rows(tmp_path / "rows.jsonl") == [Example.of("a\u2028b", "c")]
    assert Rows(rows).draw(Random(0), 0.0) in rows


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('{"prompt": "a", "completion": "b"}\n\nnothing\n', r"rows\.jsonl, line 3: not JSON"),
        ('{"prompt": "a"}\n', r"line 1: must be an object with a \"prompt\""),
        ('{"prompt": "a", "completion": 3}\n', r"line 1: .* a \"completion\" \(text\)"),
        ('{"prompt": 3, "completion": "b"}\n', r"line 1: must be an object with a \"prompt\" \(text or mes"),
        ('{"prompt": [{"role": "user"}], "completion": "b"}\n', r"line 1: must be an object"),
        ('["prompt", "completion"]\n', r"line 1: must be an object"),
        ('{"prompt": "a", "completion": "\udce9"}\n', r"line 1: not UTF-8"),
        ("\n\n", r"rows\.jsonl has no rows"),
    ],
)
def test_a_mistake_in_a_file_of_rows_is_named_with_its_line(tmp_path, text, named):
    (tmp_path / "rows.jsonl").write_text(text, encoding="utf-8", errors="surrogateescape")
    with pytest.raises(DataError, match=named):
        read_rows(tmp_path / "rows.jsonl")


def test_a_missing_file_of_rows_is_named(tmp_path):
    with pytest.raises(DataError, match=r"corpus\.data: no file .*nothing\.jsonl"):
        read_rows(tmp_path / "nothing.jsonl")
