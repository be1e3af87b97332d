"""A user's own rows: every form gives the same rows, and a flaw is named with its place."""

from __future__ import annotations

import csv
import json
import sys

import pytest

from dtm.errors import DataError
from dtm.tasks.corpus.general import read_rows
from dtm.tasks.corpus.part import Example
from dtm.tasks.language import Row, read_own
from dtm.tasks.language.own import HubName

ROWS = [
    {"prompt": 'Say "one", then two.', "answer": "1, 2"},
    {"prompt": "Two\nlines", "answer": ""},
    {"prompt": "café", "answer": " 3 "},
]


class Hub:
    """The package `datasets`, which is optional and needs a network: what it was asked for, and its rows."""

    def __init__(self, rows: list[dict[str, object]]) -> None:
        self.rows, self.asked = rows, []

    def load_dataset(self, name: str, configuration: str | None, split: str) -> list[dict[str, object]]:
        self.asked.append((name, configuration, split))
        if name == "me/away":
            raise ConnectionError("no route")
        return self.rows


@pytest.fixture
def hub(monkeypatch):
    stand_in = Hub(ROWS)
    monkeypatch.setitem(sys.modules, "datasets", stand_in)
    return stand_in


def write_csv(path, rows):
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def test_every_form_gives_the_same_rows(hub, tmp_path):
    expected = [Row(row["prompt"], {"answer": row["answer"]}) for row in ROWS]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, ROWS)))
    write_csv(tmp_path / "rows.csv", ROWS)
    assert read_own(tmp_path / "rows.jsonl") == expected
    assert read_own(str(tmp_path / "rows.csv")) == expected
    assert read_own("hub:me/rows") == expected
    assert read_own(iter(ROWS)) == expected


def test_csv_of_other_programs_is_read(tmp_path):
    path = tmp_path / "rows.CSV"
    path.write_bytes(b"\xef\xbb\xbfanswer, prompt\r\n1,a\r\n\r\n2,b\r\n3,c")
    assert [(row.prompt, row.columns) for row in read_own(path)] == [
        ("a", {"answer": "1"}), ("b", {"answer": "2"}), ("c", {"answer": "3"})
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("question,answer\na,1\n", 'line 1: the header has no column "prompt"; it has question, answer'),
        (
            "prompt;answer\na;1\n",
            'no column "prompt"; it has prompt;answer. The first line names the columns',
        ),
        ("prompt,\na,1\n", "line 1: column 2 of the header has no name"),
        ("prompt,x,x\na,1,2\n", 'line 1: the header has the column "x" twice'),
        ("prompt,x\n ,1\n", 'line 2, column "prompt": empty'),
        ("prompt,completions\na,1\n", "line 2: a reward already has the argument completions"),
        ("prompt,x\na,1\n\nb\n", "line 4: has 1 fields, and the header has 2 columns (prompt, x)"),
        ('prompt,x\n"a\nb",1\na,b,1\n', "line 4: has 3 fields"),
        ("prompt,x\na,1\n,2\n", 'line 3, column "prompt": empty'),
        ('prompt,x\na,1\n"b,2\nc,3\n', "line 3: not CSV (unexpected end of data)"),
        (f"prompt,x\na,{'9' * 140_000}\n", "line 2: not CSV (field larger than field limit"),
        ("prompt,x\na,é\n", "line 2: not UTF-8 text; store the file in that encoding"),
        ("prompt\na\nb\n", "has 2 rows (distinct prompts: 2)"),
        ("prompt\n" + "a\n" * 40, "has 40 rows (distinct prompts: 1). Rows of one prompt"),
        ("", "has 0 rows"),
    ],
)
def test_a_flaw_in_a_csv_file_is_named_with_its_place(text, named, tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text(text, encoding="latin-1", newline="")
    with pytest.raises(DataError) as problem:
        read_own(path)
    assert named in str(problem.value)
    assert str(problem.value).startswith(str(path))


def test_a_line_of_a_csv_file_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr("dtm.files.MAX_LINE", 100)
    path = tmp_path / "rows.csv"
    path.write_text(f"prompt\na\n{'b' * 300}\nc\n")
    with pytest.raises(DataError, match=r"rows\.csv, line 3: longer than 100 bytes"):
        read_own(path)


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("hub:me/rows", ("me/rows", None, "train")),
        ("hub:squad", ("squad", None, "train")),
        ("hub:me/rows:test", ("me/rows", None, "test")),
        ("hub:openai/gsm8k/main:train[:50]", ("openai/gsm8k", "main", "train[:50]")),
    ],
)
def test_a_data_set_of_the_hub_is_named_with_configuration_and_split(text, asked, hub):
    read_own(text)
    assert hub.asked == [asked]


def test_flaws_of_a_data_set_are_named(hub, monkeypatch):
    with pytest.raises(DataError, match=r"task\.data: hub:/rows is not a data set.*Write hub:USER/NAME"):
        HubName.parse("hub:/rows")
    with pytest.raises(DataError, match="is not a data set"):
        HubName.parse("hub:https://some.where/rows")
    with pytest.raises(DataError, match=r"me/away could not be read from the hub: no route\. Without a netw"):
        read_own("hub:me/away")
    hub.rows = [{"question": "a", "answer": "1"}]
    with pytest.raises(DataError, match=r'me/rows, split test, row 1: .* "prompt"; it has question, answer'):
        read_own("hub:me/rows:test")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(
        DataError, match=r"task\.data hub:me/rows needs the package datasets: pip install .*hub"
    ):
        read_own("hub:me/rows")


def test_the_package_itself_gives_texts_and_messages(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets", reason="pip install datasets to test the package itself")
    folder = tmp_path / "me" / "rows"
    folder.mkdir(parents=True)
    chat = [[{"role": "user", "content": f"Say {n}."}] for n in range(4)]
    rows = [{"prompt": prompt, "answer": n} for n, prompt in enumerate(chat)]
    (folder / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "test.jsonl").write_text("\n".join(map(json.dumps, rows[1:])))
    monkeypatch.chdir(tmp_path)  # a folder of that name goes before the hub's data set
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    assert read_own("hub:me/rows") == [Row(row["prompt"], {"answer": row["answer"]}) for row in rows]
    assert len(read_own("hub:me/rows:test")) == 3


def test_an_array_of_rows_is_no_line_of_rows(tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps(ROWS))
    with pytest.raises(DataError, match=r"line 1: .* it is an array: write one object on each line"):
        read_own(tmp_path / "rows.jsonl")


def test_rows_in_memory_and_missing_files_are_named():
    with pytest.raises(DataError, match=r'^data, row 2: "prompt" must be text'):
        read_own([{"prompt": "a"}, {"prompt": 2}])
    with pytest.raises(DataError, match=r"^data has 1 rows"):
        read_own([{"prompt": "a"}])
    with pytest.raises(DataError, match=r"task\.data: no file me/rows\. .* as hub:USER/NAME"):
        read_own("me/rows")


def test_the_corpus_of_an_adaptation_reads_the_same_forms(tmp_path):
    write_csv(tmp_path / "rows.csv", [{"prompt": "1+1", "completion": "2"}])
    assert read_rows(tmp_path / "rows.csv") == [Example.of("1+1", "2")]
    with pytest.raises(DataError, match=r"corpus\.data: no file none\.csv"):
        read_rows(tmp_path.relative_to(tmp_path) / "none.csv")
