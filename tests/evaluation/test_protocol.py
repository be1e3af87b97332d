"""Published protocols: every item once, one score however it is batched, and rows that grade the same."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from dtm.cli import main
from dtm.engine import Decoder, SampledConfidence
from dtm.evaluation.complete import complete
from dtm.evaluation.protocol import Examination, examine
from dtm.evaluation.subject import ModelFiles, Subject
from dtm.random import stream

pytest.importorskip("transformers")
FAMILIES = pytest.mark.parametrize("family", ["llada", "dream"])
PUZZLES = ["3014002020004130", "0000100420013142"]
SOLUTIONS = ["3214142323414132", "4213132424313142"]


@pytest.fixture
def data(tmp_path):
    """A data folder with the four test files, a few items each."""
    folder = tmp_path / "data"
    folder.mkdir()
    files = {
        "countdown_cd3_test.jsonl": [
            {"input": "20,2,3", "output": "25"},
            {"input": "7,2,3", "output": "42"},
            {"input": "100,20,30", "output": "150"},
        ],
        "gsm8k_test.jsonl": [
            {"question": "1 + 2?", "answer": "so #### 3"},
            {"question": "3 - 5?", "answer": "#### -2"},
        ],
        "math500_test.jsonl": [{"problem": "Half?", "answer": r"\frac{1}{2}"}],
    }
    for name, rows in files.items():
        (folder / name).write_text("\n".join(map(json.dumps, rows)))
    grids = [f"{puzzle},{solution}" for puzzle, solution in zip(PUZZLES, SOLUTIONS, strict=True)]
    (folder / "sudoku4x4_test_spg256.csv").write_text("\n".join(["Puzzle,Solution", *grids]))
    return folder


@pytest.fixture
def talking(write_talking):
    """A random model that can read and write."""
    return write_talking("llada")


def prompts_of_lengths(*lengths: int) -> list[list[int]]:
    noise = stream(0, "prompts")
    return [torch.randint(6, 100, (length,), generator=noise).tolist() for length in lengths]


@FAMILIES
def test_completions_do_not_depend_on_the_batch_or_the_order(write_talking, family):
    model = Subject.load(ModelFiles.find(str(write_talking(family, scale=2.5))), "cpu").model
    asked = prompts_of_lengths(9, 30, 9, 17, 9, 30, 9, 4, 9)
    decoder = Decoder(order=SampledConfidence(), block=8, tokens_per_step=2, temperature=0.0)

    def completed(prompts, batch):
        return complete(model, prompts, 16, decoder, batch, torch.device("cpu")).tolist()

    alone = completed(asked, 1)
    assert sum(len(set(row)) for row in alone) > 5 * len(alone)  # texts in which a wrong bit would show
    assert completed(asked, 3) == alone
    assert completed(asked, len(asked)) == alone
    assert completed(asked[::-1], 3) == alone[::-1]
    assert completed(asked[3:4], 1) == alone[3:4]


@FAMILIES
@pytest.mark.parametrize("task", ["countdown", "sudoku", "gsm8k", "math500"])
def test_every_item_is_asked_once_in_the_order_of_its_file(write_talking, data, family, task):
    subject = Subject.load(ModelFiles.find(str(write_talking(family))), "cpu")
    outcome = examine(subject, Examination(task=task, length=32), data)
    expected = {
        "countdown": [[[20, 2, 3], 25], [[7, 2, 3], 42], [[100, 20, 30], 150]],
        "sudoku": SOLUTIONS,
        "gsm8k": ["#### 3", "#### -2"],
        "math500": [r"\frac{1}{2}"],
    }
    assert [row["ground_truth"] for row in outcome.rows] == expected[task]
    assert outcome.measures["length"] == sum(row["length"] for row in outcome.rows) / len(outcome.rows)
    extra = {"countdown": {"accuracy_add_sub", "accuracy_mul_div"}, "sudoku": {"solved"}}
    assert outcome.measures.keys() == {"accuracy", "length"} | extra.get(task, set())


def test_protocols_ask_differently(talking, data):
    subject = Subject.load(ModelFiles.find(str(talking)), "cpu")
    marks = [
        examine(subject, Examination(task="countdown", protocol=name, length=32, limit=1), data).fingerprint
        for name in ("dtm", "spg")
    ]
    assert marks[0]["prompts"]["texts"] != marks[1]["prompts"]["texts"]
    assert (marks[0]["answers"]["rules"], marks[1]["answers"]["rules"]) == ("dtm", "spg")
    assert marks[0]["items"] == marks[1]["items"]
    assert marks[0]["items"]["count"] == 1
    assert marks[0]["decoding"] == {
        "length": 32, "block": 32, "tokens_per_step": 2, "order": "sampled-confidence", "temperature": 0.0
    }  # fmt: skip


@FAMILIES
def test_a_row_that_stops_at_its_end_has_the_same_text_up_to_it(write_talking, data, family):
    subject = Subject.load(ModelFiles.find(str(write_talking(family, scale=2.5))), "cpu")

    def examined(**options):
        return examine(subject, Examination(task="gsm8k", length=96, **options), data)

    end = examined().rows[0]["generation"][20]  # a letter that the model writes stands for the end
    (subject.model.eos_id,) = subject.chat._tokenizer.encode(end, add_special_tokens=False)
    whole, stopped = examined(), examined(until_end=True)
    for long, short in zip(whole.rows, stopped.rows, strict=True):
        assert long["generation"].partition(end)[0] == short["generation"].partition(end)[0]
    assert any(end in row["generation"] for row in stopped.rows)
    assert [row["generation"] for row in whole.rows] != [row["generation"] for row in stopped.rows]
    assert whole.fingerprint["decoding"] != stopped.fingerprint["decoding"]


@pytest.fixture
def writes(talking, monkeypatch):
    """Let models write given texts, one for each item."""
    chat = Subject.load(ModelFiles.find(str(talking)), "cpu").chat

    def patch(texts):
        def complete(model, prompts, length, *rest):
            ids = [chat._tokenizer.encode(text, add_special_tokens=False) for text in texts]
            return torch.tensor([row + [1] * (length - len(row)) for row in ids])

        monkeypatch.setattr("dtm.evaluation.protocol.complete", complete)

    return patch


def run(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


def test_the_length_is_counted_in_tokens_and_special_ones_stay_in_the_text(talking, data, writes):
    subject = Subject.load(ModelFiles.find(str(talking)), "cpu")
    text = "<answer>20+2+3</answer><|eot_id|>"
    writes([text, "", "2"])
    outcome = examine(subject, Examination(task="countdown", length=64), data)
    tokens = len("<answer>20+2+3</answer>") + 1  # one for each letter
    assert outcome.rows[0]["generation"] == text + "<|endoftext|>" * (64 - tokens)
    assert [row["length"] for row in outcome.rows] == [tokens, 0, 1]
    assert outcome.measures == {
        "accuracy": 1 / 3,
        "accuracy_add_sub": 1 / 2,
        "accuracy_mul_div": 0.0,
        "length": (tokens + 1) / 3,
    }


@pytest.mark.parametrize(
    ("task", "protocol", "texts", "accuracy"),
    [
        ("countdown", "spg", [r"\boxed{20+2+3}", r"\boxed{7+2}", "no"], 1 / 3),
        ("sudoku", "dtm", [f"<answer>{SOLUTIONS[0]}</answer>", "<answer>42</answer>"], 10 / 16),
        ("gsm8k", "d1", ["<answer>3</answer>", r"\boxed{-2}"], 1 / 2),  # d1 cannot read a negative gold
        ("math500", "dtm", [r"\boxed{\frac12}"], 1.0),
    ],
)
def test_the_rows_of_a_result_grade_to_the_same_numbers(
    talking, data, tmp_path, capsys, writes, task, protocol, texts, accuracy
):
    writes(texts)
    options = ("--task", task, "--protocol", protocol, "--length", 64, "--data-dir", data, "--device", "cpu")
    assert run("eval", talking, *options, "--json", tmp_path / "out.json") == 0
    assert f"{task}, protocol {protocol}, {len(texts)} items" in capsys.readouterr().out
    result = json.loads((tmp_path / "out.json").read_text())
    assert result["measures"]["accuracy"] == accuracy
    rows = [json.loads(line) for line in (tmp_path / result["rows"]).read_text().splitlines()]
    assert run("grade", task, tmp_path / "out.jsonl", "--rules", protocol) == 0
    printed = capsys.readouterr()
    assert [json.loads(line) for line in printed.out.splitlines()] == rows
    assert f"({accuracy:.1%})" in printed.err


def test_the_result_does_not_depend_on_the_batch_and_a_folder_holds_all_lengths(talking, data, tmp_path):
    options = ("--task", "countdown", "--length", 32, 64, "--data-dir", data, "--device", "cpu")
    for batch in (1, 3, 100):
        assert run("eval", talking, *options, "--batch", batch, "--json", tmp_path / str(batch)) == 0
    names = {
        "countdown-dtm-32.json",
        "countdown-dtm-32.jsonl",
        "countdown-dtm-64.json",
        "countdown-dtm-64.jsonl",
    }
    assert {path.name for path in (tmp_path / "1").iterdir()} == names
    for name in names:
        written = [(tmp_path / batch / name).read_text() for batch in ("1", "3", "100")]
        if name.endswith("json"):
            results = [json.loads(text) for text in written]
            written = [(result["measures"], result["fingerprint"]) for result in results]
        assert written[0] == written[1] == written[2]


# ── mistakes ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--task", "countdwn"], "no task 'countdwn'. Did you mean 'countdown'?"),
        (["--task", "countdown", "--protocol", "spgg"], "no protocol 'spgg'. Did you mean 'spg'?"),
        (
            ["--task", "countdown", "--length", "100"],
            "a multiple of the protocols' block of 32 tokens, got 100",
        ),
        (["--task", "countdown", "--limit", "0"], "--limit must be at least 1"),
        (["--task", "countdown"], "name their folder with --data-dir"),
        (["--task", "countdown", "--data-dir", "nowhere"], "no file nowhere/countdown_cd3_test.jsonl"),
        (["--task", "countdown", "--split", "test"], "--split is for runs, without --task"),
        (["--length", "256"], "--length needs --task"),
        (
            ["--task", "countdown", "--data-dir", "x", "--length", "32", "64", "--json", "a.json"],
            "a.json is one file for 2 lengths: name a folder",
        ),
    ],
)
def test_a_mistake_ends_with_code_2_and_names_the_remedy(
    flags, named, talking, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert run("eval", talking, *flags) == 2
    text = " ".join(capsys.readouterr().err.split())
    assert named in text
    assert "Traceback" not in text


def test_what_is_no_model_or_has_no_tokenizer_is_refused(write_hub, finished, data, tmp_path, capsys):
    options = ("--task", "countdown", "--data-dir", data)
    assert run("eval", "nowhere", *options) == 2
    assert "no usable model in nowhere" in capsys.readouterr().err
    assert run("eval", write_hub("llada"), *options) == 2
    assert "tokenizer.json is missing" in capsys.readouterr().err
    assert run("eval", finished.path, *options) == 2
    assert f"`dtm eval {finished.path}` without --task" in " ".join(capsys.readouterr().err.split())
    assert run("eval") == 2
    assert "needs a run's folder" in capsys.readouterr().err


def test_a_model_without_a_task_is_told_from_a_run(talking, capsys):
    assert run("eval", talking) == 2
    assert "is a model and not a run: name the task with --task TASK" in capsys.readouterr().err


def test_what_is_missing_is_said_before_a_model_is_loaded(talking, data, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(Subject, "load", lambda *_: pytest.fail("the model was loaded"))
    (tmp_path / "file").write_text("")
    assert run("eval", talking, "--task", "countdown", "--data-dir", tmp_path / "nowhere") == 2
    assert "countdown_cd3_test.jsonl" in capsys.readouterr().err
    options = ("--task", "countdown", "--data-dir", data, "--json", tmp_path / "file" / "out")
    assert run("eval", talking, *options) == 2
    assert "no folder can be made" in capsys.readouterr().err


def test_a_length_that_is_done_is_kept_when_the_next_one_fails(talking, data, tmp_path, monkeypatch):
    def fail_at_64(subject, exam, data):
        if exam.length == 64:
            raise KeyboardInterrupt
        return examine(subject, exam, data)

    monkeypatch.setattr("dtm.cli.evaluation._examine", fail_at_64)
    options = ("--task", "countdown", "--data-dir", data, "--length", 32, 64, "--json", tmp_path / "out")
    assert run("eval", talking, *options) == 130
    assert (tmp_path / "out" / "countdown-dtm-32.json").is_file()


def test_the_result_of_another_model_is_not_written_over(talking, data, tmp_path, capsys):
    options = ("--task", "countdown", "--data-dir", data, "--length", 32, "--json", tmp_path / "out")
    shutil.copytree(talking, tmp_path / "other")
    assert run("eval", talking, *options) == 0
    assert run("eval", talking, *options) == 0
    kept = (tmp_path / "out" / "countdown-dtm-32.json").read_bytes()
    assert run("eval", tmp_path / "other", *options) == 2
    assert f"is a result of {talking}" in " ".join(capsys.readouterr().err.split())
    assert (tmp_path / "out" / "countdown-dtm-32.json").read_bytes() == kept


def test_a_run_that_has_not_finished_is_refused(tiny, data, tmp_path, capsys):
    from dtm.config.serialise import to_yaml

    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "config.yaml").write_text(to_yaml(tiny))
    assert run("eval", tmp_path / "half", "--task", "countdown", "--data-dir", data) == 2
    assert "has not finished: it has no model" in capsys.readouterr().err
