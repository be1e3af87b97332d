"""The published rules against released generations with the verdicts of the original graders, one by one."""

from __future__ import annotations

import gzip
import json
import os
from collections import Counter
from pathlib import Path

import pytest

from dtm.evaluation.grade import GRADERS

NAME = "parser_parity_llada_instruct.jsonl.gz"
ROOT = Path(__file__).parents[3]
FOLDER = Path(os.environ.get("DTM_SHARED_DATA", ROOT.parent / "shared" / "data"))

TOTALS = {
    ("countdown", 128): 24,
    ("countdown", 256): 25,
    ("countdown", 512): 24,
    ("math500", 128): 71,
    ("math500", 256): 73,
    ("math500", 512): 92,
    ("sudoku", 128): 120,
    ("sudoku", 256): 82,
    ("sudoku", 512): 46,
}


@pytest.fixture(scope="module")
def rows():
    if not (FOLDER / NAME).is_file():
        pytest.skip(f"no {NAME} in {FOLDER}; name its folder with DTM_SHARED_DATA")
    with gzip.open(FOLDER / NAME, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file]


@pytest.mark.parametrize("rules", ["d1", "spg"])
def test_every_verdict_is_that_of_the_original(rows, rules):
    totals = Counter()
    for row in rows:
        grader = GRADERS[row["task"]]
        verdict = grader(row["question"], row["ground_truth"], row["generation"], rules)
        if row["task"] == "sudoku":
            assert verdict.extracted == row["ref_extracted"]
            assert verdict.empty_cells == row["ref_empty_cells"]
            assert verdict.correct_cells == row["ref_correct_cells"]
            totals[row["task"], row["gen_length"]] += verdict.correct_cells
            continue
        assert verdict.correct == row[f"ref_correct_{rules}"], row["generation"]
        totals[row["task"], row["gen_length"]] += verdict.correct
        if rules == "d1" and row["ref_extracted"] is not None:
            assert verdict.extracted == row["ref_extracted"]
    assert totals == {**TOTALS, ("gsm8k", 256): 450 if rules == "d1" else 460}


def test_dtm_reads_as_spg_where_it_released_no_grader(rows):
    for row in rows:
        if row["task"] != "countdown":
            grade, parts = GRADERS[row["task"]], (row["question"], row["ground_truth"], row["generation"])
            assert grade(*parts, "dtm") == grade(*parts, "spg")
