"""Items of the language tasks: reading, generating, splitting, asking."""

from __future__ import annotations

import gzip
import json
import os
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch

from dtm.errors import DataError
from dtm.random import stream
from dtm.tasks.countdown import generate as make_countdown
from dtm.tasks.countdown import items as countdown
from dtm.tasks.countdown import prompts as countdown_prompts
from dtm.tasks.countdown.items import CountdownItem
from dtm.tasks.countdown.solve import needs, solvable, solvable_rows
from dtm.tasks.gsm8k import items as gsm8k
from dtm.tasks.gsm8k import prompts as gsm8k_prompts
from dtm.tasks.language import benchmarks
from dtm.tasks.math500 import items as math500
from dtm.tasks.math500 import prompts as math500_prompts
from dtm.tasks.protocols import prefill
from dtm.tasks.sudoku import generate as make_sudoku
from dtm.tasks.sudoku import grids
from dtm.tasks.sudoku import items as sudoku
from dtm.tasks.sudoku import prompts as sudoku_prompts
from dtm.tasks.sudoku.exemplars import EXEMPLARS, deductions, neighbours
from dtm.tasks.sudoku.items import SudokuItem

SHARED = Path(os.environ.get("DTM_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))
has_data = pytest.mark.skipif(
    not SHARED.is_dir(), reason=f"no data sets in {SHARED}; name their folder with DTM_SHARED_DATA"
)


# ── files ─────────────────────────────────────────────────────────────────────────────────────────


class Hub:
    """The package `datasets`, which is optional and needs a network: what it was asked for, and its rows."""

    def __init__(self, **splits: list[dict[str, object]]) -> None:
        self.splits, self.asked = splits, []

    def load_dataset(self, name: str, configuration: str | None, split: str) -> list[dict[str, object]]:
        self.asked.append((name, configuration, split))
        if split not in self.splits:
            raise ConnectionError("no route")
        return self.splits[split]


HUB = Path("hub")


def test_gsm8k_comes_from_the_hub(monkeypatch):
    hub = Hub(train=[{"question": "2 + 2?", "answer": "It is #### 4"}])
    monkeypatch.setitem(sys.modules, "datasets", hub)
    assert gsm8k.train_items(HUB) == [gsm8k.Gsm8kItem("2 + 2?", "4")]
    assert hub.asked == [("openai/gsm8k", "main", "train")]
    with pytest.raises(DataError, match=r"openai/gsm8k could not be read from the hub: no route"):
        gsm8k.test_items(HUB)


def test_the_training_split_of_math_is_one_on_the_hub(monkeypatch):
    hub = Hub(train=[{"problem": "1 + 1", "solution": r"\boxed{2}"}], test=[{"problem": "x"}])
    monkeypatch.setitem(sys.modules, "datasets", hub)
    assert math500.train_items(HUB) == [math500.MathItem("1 + 1", "2")]
    assert hub.asked == [("ankner/math-500", None, "train")]
    with pytest.raises(DataError, match=r"ankner/math-500, split test, row 1: no column answer"):
        math500.test_items(HUB)


def test_the_hub_needs_its_package_and_says_what_it_has_not(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"needs the package datasets: pip install .*\[hub\]"):
        gsm8k.test_items(HUB)
    with pytest.raises(DataError, match=r"is not on the hub.*facebookresearch/SPG.*--data-dir generated"):
        countdown.test_items(HUB)


def test_a_folder_called_hub_is_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    HUB.mkdir()
    with pytest.raises(DataError, match=r"no file hub/gsm8k_test.jsonl"):
        gsm8k.test_items(HUB)


@pytest.mark.parametrize("kind", ["countdown", "sudoku"])
def test_generated_items_are_split_without_overlap(kind, monkeypatch):
    monkeypatch.setattr(benchmarks, "PUZZLES", 300)
    benchmark, folder = benchmarks.BENCHMARKS[kind], Path("generated")
    train, test = benchmark.train(folder), benchmark.test(folder)
    assert (len(train), len(test)) == (300, 256)
    assert not {benchmark.same(item) for item in train} & {benchmark.same(item) for item in test}


@pytest.mark.parametrize(
    ("read", "name", "source"),
    [
        (countdown.test_items, "countdown_cd3_test.jsonl", "facebookresearch/SPG"),
        (sudoku.test_items, "sudoku4x4_test_spg256.csv", "facebookresearch/SPG"),
        (gsm8k.test_items, "gsm8k_test.jsonl", "openai/grade-school-math"),
        (math500.test_items, "math500_test.jsonl", "openai/prm800k"),
        (math500.train_items, "math_train_7500.jsonl.gz", "hendrycks/math"),
    ],
)
def test_a_missing_file_is_named_with_its_source(read, name, source, tmp_path):
    with pytest.raises(DataError) as caught:
        read(tmp_path)
    assert str(tmp_path / name) in str(caught.value)
    assert source in str(caught.value)


def test_a_row_without_its_column_and_a_broken_file_are_named(tmp_path):
    path = tmp_path / "gsm8k_test.jsonl"
    path.write_text('{"question": "how many?"}\n')
    with pytest.raises(DataError, match=r"gsm8k_test\.jsonl, row 1: no column answer"):
        gsm8k.test_items(tmp_path)
    path.write_text("{\n")
    with pytest.raises(DataError, match=r"gsm8k_test\.jsonl, row 1: not JSON"):
        gsm8k.test_items(tmp_path)
    path.write_text("")
    with pytest.raises(DataError, match="holds no rows"):
        gsm8k.test_items(tmp_path)


def test_a_file_may_be_gzipped_or_not(tmp_path):
    row = json.dumps({"question": "how many?", "answer": "many\n#### 1,000"})
    with gzip.open(tmp_path / "gsm8k_test.jsonl.gz", "wt") as file:
        file.write(row + "\n")
    (tmp_path / "gsm8k_train.jsonl").write_text(row + "\n")
    expected = [gsm8k.Gsm8kItem("how many?", "1,000")]
    assert gsm8k.test_items(tmp_path) == gsm8k.train_items(tmp_path) == expected


def test_items_of_the_test_file_are_dropped_from_training(tmp_path):
    """X17: the same numbers in another order are the same item."""
    (tmp_path / "countdown_cd3_test.jsonl").write_text('{"input": "99,13,40", "output": "72"}\n')
    (tmp_path / "countdown_cd3_train_subset.jsonl").write_text(
        '{"nums": [13, 40, 99], "target": 72}\n{"nums": [13, 40, 99], "target": 46}\n'
    )
    assert countdown.train_items(tmp_path) == [CountdownItem((13, 40, 99), 46)]


@has_data
def test_the_data_sets_have_their_known_sizes():
    test = countdown.test_items(SHARED)
    assert Counter(map(needs, test)) == {"add": 229, "multiply": 27}
    assert len(countdown.train_items(SHARED)) == 5052 - 2
    puzzles = sudoku.test_items(SHARED)
    assert len(puzzles) == 256
    assert sum(item.puzzle.count("0") for item in puzzles) == 2090
    assert all(grids.is_unique(item.puzzle) for item in puzzles)
    assert Counter(item.puzzle.count("0") for item in puzzles) == make_sudoku.BLANKS
    assert len(make_sudoku.training_solutions(puzzles)) == 200
    assert (len(gsm8k.test_items(SHARED)), len(gsm8k.train_items(SHARED))) == (1319, 7473)
    assert (len(math500.test_items(SHARED)), len(math500.train_items(SHARED))) == (500, 11_998)


# ── Countdown ─────────────────────────────────────────────────────────────────────────────────────


def test_needs_tells_addition_from_multiplication():
    assert needs(CountdownItem((38, 92, 52), 78)) == "add"
    assert needs(CountdownItem((2, 3, 4), 24)) == "multiply"
    assert needs(CountdownItem((6, 4, 2), 3)) == "multiply"  # 6 / (4 - 2)
    assert needs(CountdownItem((1, 1, 1), 99)) is None
    assert needs(CountdownItem((3, 3, 8), 8)) == "add"
    assert not solvable(CountdownItem((5, 3, 3), 0), "/")  # 5 / (3 - 3) would be, were it a number
    assert not solvable(CountdownItem((0, 0, 5), 7))


def test_many_items_are_judged_as_each_alone():
    numbers = torch.randint(0, 12, (300, 3), generator=stream(0, "test"))
    targets = torch.randint(0, 40, (300,), generator=stream(1, "test"))
    items = [CountdownItem(tuple(row), t) for row, t in zip(numbers.tolist(), targets.tolist(), strict=True)]
    assert solvable_rows(numbers, targets).tolist() == [solvable(item) for item in items]


def test_generated_countdown_items_are_solvable_new_and_repeatable():
    first = make_countdown.generate(40, seed=0)
    assert first == make_countdown.generate(40, seed=0)
    assert first != make_countdown.generate(40, seed=1)
    assert len({item.key for item in first}) == 40
    assert all(map(solvable, first))
    turned = [CountdownItem(item.numbers[::-1], item.target) for item in first]
    again = make_countdown.generate(40, seed=0, excluded=turned)
    assert not {item.key for item in again} & {item.key for item in first}


# ── Sudoku ────────────────────────────────────────────────────────────────────────────────────────


def test_there_are_288_grids():
    assert len(set(grids.all_grids())) == 288
    assert all(map(grids.is_valid, grids.all_grids()))


def test_completions_are_the_grids_that_keep_the_givens():
    assert grids.completions("3014002020004130") == ["3214142323414132"]
    assert len(grids.completions("0" * 16)) == 288
    assert grids.completions("1100" + "0" * 12) == []
    assert not grids.is_unique("1" + "0" * 15)


def test_generated_puzzles_are_unique_new_and_blanked_as_the_test_puzzles():
    solutions = grids.all_grids()[:200]
    items = make_sudoku.generate(solutions, 400, seed=0)
    assert items == make_sudoku.generate(solutions, 400, seed=0)
    assert len({item.puzzle for item in items}) == 400
    assert all(grids.completions(item.puzzle) == [item.solution] for item in items)
    assert {item.solution for item in items} <= set(solutions)
    counts = Counter(item.puzzle.count("0") for item in items)
    assert set(counts) <= set(make_sudoku.BLANKS)
    assert 90 < counts[8] < 170


def test_a_split_is_by_solution_with_the_exemplars_in_training():
    train, test = make_sudoku.split_solutions(seed=0)
    assert (len(train), len(test)) == (200, 88)
    assert not set(train) & set(test)
    assert {exemplar.solution for exemplar in EXEMPLARS} <= set(train)
    items = [SudokuItem("0" * 16, solution) for solution in test]
    assert sorted(make_sudoku.training_solutions(items)) == train


@pytest.mark.parametrize("exemplar", EXEMPLARS, ids=lambda exemplar: exemplar.puzzle)
def test_every_step_of_an_exemplar_is_forced(exemplar):
    assert grids.completions(exemplar.puzzle) == [exemplar.solution]
    grid = list(exemplar.puzzle)
    for place in exemplar.order.split():
        cell = 4 * (int(place[0]) - 1) + int(place[1]) - 1
        assert grid[cell] == "0"
        assert set("1234") - neighbours(grid, cell) == {exemplar.solution[cell]}
        grid[cell] = exemplar.solution[cell]
    assert "".join(grid) == exemplar.solution
    assert len(deductions(exemplar)) == exemplar.puzzle.count("0")


# ── prompts ───────────────────────────────────────────────────────────────────────────────────────


def test_dtm_asks_the_same_in_training_and_evaluation():
    for prompts, item in (
        (countdown_prompts, CountdownItem((38, 92, 52), 78)),
        (sudoku_prompts, SudokuItem("3" * 16, "3" * 16)),
        (gsm8k_prompts, gsm8k.Gsm8kItem("how many?", "1")),
        (math500_prompts, math500.MathItem("what?", "1")),
    ):
        assert prompts.prompt(item, "dtm", "training") == prompts.prompt(item, "dtm", "evaluation")
        assert prompts.prompt(item, "spg", "training") != prompts.prompt(item, "spg", "evaluation")
        if prompts is not sudoku_prompts:  # where d1 shows no exemplars
            assert prompts.prompt(item, "spg", "evaluation") == prompts.prompt(item, "d1", "evaluation")


def test_the_countdown_prompt_of_the_paper():
    text = countdown_prompts.prompt(CountdownItem((38, 92, 52), 78))
    assert text.startswith(
        "\nRespond in the following format:\n<reasoning>\n...\n</reasoning>\n<answer>\n...\n"
    )
    assert "</answer>\n\nUsing only the numbers [38, 92, 52] create an arithmetic expression" in text
    assert text.endswith("a valid answer is:\n<answer>\n2*4-3\n</answer>")
    graded = countdown_prompts.prompt(CountdownItem((38, 92, 52), 78), "spg", "evaluation")
    assert graded.endswith("\n\nNumbers: [38, 92, 52]\nTarget: 78")


def test_the_sudoku_prompt_shows_its_exemplars_and_then_the_puzzle():
    item = SudokuItem("0310200404001043", "4312213434211243")
    text = sudoku_prompts.prompt(item)
    assert text.count("Question:") == 4
    assert text.endswith("\n\nQuestion: Solve the following Sudoku puzzle: 0310200404001043\nAnswer:\n")
    assert sudoku_prompts.prompt(item, "spg", "evaluation").endswith("0310200404001043\n\nAnswer:\n")
    assert sudoku_prompts.prompt(item, shots=0).count("Question:") == 1
    assert sudoku_prompts.prompt(item, "d1", "evaluation").count("Question:") == 1


def test_the_mathematics_prompts():
    item = math500.MathItem("what?", "1")
    assert math500_prompts.prompt(item).endswith("\\boxed{...}\n</answer>\n\nwhat?")
    assert math500_prompts.prompt(item, "spg", "evaluation").endswith('</answer>" \n\nwhat?')
    assert math500_prompts.prompt(item, "spg", "training").endswith(
        r"Wrap the final answer in a \boxed{}. " + "\n\nwhat?"
    )
    question = gsm8k.Gsm8kItem("how many?", "1")
    assert r"\boxed" not in gsm8k_prompts.prompt(question, "spg", "training")
    assert gsm8k_prompts.prompt(question).replace("how many?", "what?") == math500_prompts.prompt(item)


def test_d1_and_spg_evaluate_from_inside_the_reasoning_tag():
    assert prefill("spg", "evaluation") == prefill("d1", "evaluation") == "<reasoning>"
    assert prefill("spg", "training") == prefill("dtm", "evaluation") == ""
