"""Rows from a file: read again as they were saved, and mistakes named with their line."""

from __future__ import annotations

from random import Random

import pytest

from dtm.errors import DataError
from dtm.tasks.corpus.general import Rows, read_rows, save_rows
from dtm.tasks.corpus.part import Example, pieces


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
