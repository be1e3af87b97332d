"""`dtm grade`: rows in, verdicts out, totals aside, and every mistake named."""

from __future__ import annotations

import gzip
import io
import json
import subprocess
import sys

import pytest

from dtm.cli import main
from dtm.evaluation.grade import Totals, grade_rows

ROW = {"question": "Numbers: [38, 92, 52]\nTarget: 78", "ground_truth": [[38, 92, 52], 78]}
RIGHT = {**ROW, "generation": r"<answer>\boxed{92 - 52 + 38}</answer>"}
WRONG = {**ROW, "generation": "<answer>92 + 52</answer>"}


@pytest.fixture
def grade(capsys, tmp_path, monkeypatch):
    """Run ``dtm grade`` on rows or raw text; its exit code, the rows it printed, and what it said."""
    monkeypatch.chdir(tmp_path)

    def run(task, rows, *flags, name="rows.jsonl"):
        text = rows if isinstance(rows, str) else "".join(json.dumps(row) + "\n" for row in rows)
        data = text.encode("utf-8", "surrogatepass")
        (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        code = main(["grade", task, name, *flags])
        printed = capsys.readouterr()
        return code, [json.loads(line) for line in printed.out.splitlines()], printed.err

    return run


def test_each_row_comes_back_with_its_verdict(grade):
    code, rows, text = grade("countdown", [RIGHT, WRONG], "--rules", "spg")
    assert code == 0
    assert rows[0] == {**RIGHT, "extracted": "92 - 52 + 38", "correct": True}
    assert rows[1]["correct"] is False
    assert text == "countdown, rules spg: 1 of 2 (50.0%) correct\n"


def test_the_rules_decide(grade):
    assert [row["correct"] for row in grade("countdown", [RIGHT], "--rules", "dtm")[1]] == [False]
    assert [row["correct"] for row in grade("countdown", [RIGHT])[1]] == [True]


def test_sudoku_counts_cells(grade):
    puzzle = {"question": "3014002020004130", "ground_truth": "3214142323414132"}
    code, rows, text = grade("sudoku", [{**puzzle, "generation": "<answer>3214 1423</answer>"}])
    assert code == 0
    assert (rows[0]["correct_cells"], rows[0]["empty_cells"], rows[0]["correct"]) == (4, 8, False)
    assert "sudoku, rules fixed: 4 of 8 (50.0%) empty cells correct\n" in text


def test_a_gzipped_file_and_the_standard_input_are_read(grade, monkeypatch, capsys):
    assert grade("countdown", [RIGHT], name="rows.jsonl.gz")[0] == 0
    stream = io.TextIOWrapper(io.BytesIO(json.dumps(RIGHT).encode()))
    monkeypatch.setattr("sys.stdin", stream)
    assert main(["grade", "countdown", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["correct"] is True


def test_rows_of_other_tasks_and_without_gold_are_left_out_of_the_count(grade):
    rows = [
        {"task": "gsm8k", "question": "q", "ground_truth": None, "generation": r"\boxed{1}"},
        {"task": "gsm8k", "question": "q", "ground_truth": 1.0, "generation": r"\boxed{1}"},
        {"task": "countdown", **RIGHT},
    ]
    code, graded, text = grade("gsm8k", rows)
    assert code == 0
    assert [row["correct"] for row in graded] == [None, True]
    assert "1 of 1 (100.0%) correct" in text
    assert "rows without a gold answer (ground_truth null), not counted: 1" in text
    assert "rows of other tasks, not counted: 1" in text


def test_a_bad_row_is_named_with_its_line_and_the_others_are_graded(grade):
    lines = [
        json.dumps(RIGHT),
        "",
        "{not json",
        "[1]",
        '{"question": "q"}',
        json.dumps({**RIGHT, "generation": 5}),
        json.dumps({**RIGHT, "question": "q", "ground_truth": 78}),
        json.dumps(WRONG),
    ]
    code, rows, text = grade("countdown", "\n".join(lines))
    assert code == 1
    assert [row["correct"] for row in rows] == [True, False]
    for said in (
        "dtm: rows.jsonl, line 3: not JSON",
        "line 4: must be a JSON object, is a list",
        "line 5: no ground_truth, no generation; a row has question, ground_truth, generation",
        "line 6: generation must be text, is '5'",
        "line 7: ground_truth must be [[numbers], target]",
        "rows that could not be graded: 5",
    ):
        assert said in text
    assert "Traceback" not in text


@pytest.mark.parametrize("generation", ["\ud800 \0", r"\boxed{nan}", r"\boxed{1e999}", ""])
def test_what_comes_back_is_json_whatever_was_generated(grade, generation):
    row = {"question": "q", "ground_truth": 1.0, "generation": generation}
    code, rows, _ = grade("gsm8k", [row], "--rules", "spg")
    assert code == 0
    assert rows[0]["extracted"] is None
    assert rows[0]["correct"] is False


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["countdwn", "rows.jsonl"], "no task 'countdwn'. Did you mean 'countdown'?"),
        (["countdown", "rows.jsonl", "--rules", "spgg"], "no rules 'spgg'. Did you mean 'spg'?"),
        (["countdown", "nowhere.jsonl"], "no file nowhere.jsonl"),
        (["countdown", "broken.jsonl.gz"], "broken.jsonl.gz is a damaged gzip file"),
        (["gsm8k", "empty.jsonl"], "empty.jsonl holds no rows of gsm8k"),
    ],
)
def test_a_mistake_ends_with_code_2_and_names_the_remedy(arguments, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text(json.dumps(RIGHT))
    (tmp_path / "broken.jsonl.gz").write_bytes(b"not gzip")
    (tmp_path / "empty.jsonl").write_text("\n")
    assert main(["grade", *arguments]) == 2
    text = capsys.readouterr().err
    assert said in text
    assert "Traceback" not in text


def test_grading_loads_no_torch(tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps(RIGHT))
    check = (
        "import sys; from dtm.cli import main; "
        f"main(['grade', 'countdown', {str(tmp_path / 'rows.jsonl')!r}]); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", check], capture_output=True).returncode == 0


def test_a_comparison_past_its_deadline_is_told_apart_from_a_wrong_answer(monkeypatch):
    pytest.importorskip("math_verify")
    monkeypatch.setattr("dtm.tasks.answers.symbolic.equal", lambda answer, gold: None)
    totals, row = Totals(), {"question": "", "ground_truth": "5", "generation": r"\boxed{2+3}"}
    (graded,) = grade_rows("math500", "fixed", [json.dumps(row).encode()], totals)
    assert (graded["correct"], graded["undecided"]) == (False, True)
    assert "comparisons past their deadline, counted as wrong: 1" in totals.describe()
