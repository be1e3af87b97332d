"""What a page says about single samples and about the run: drawings, checked sums, warnings."""

from __future__ import annotations

import math

import pytest
from page_runs import read_log

from dtm.config import MazeConfig, MiniConfig, RunConfig
from dtm.errors import DtmWarning
from dtm.report.page.advice import advice
from dtm.report.page.data import verdict
from dtm.report.page.drawings import drawing, scene
from dtm.report.page.log import WARNINGS


def test_a_sudoku_is_drawn_with_the_cells_that_break_a_rule():
    shown = scene(RunConfig(task=MiniConfig(kind="sudoku-mini")))
    puzzle = "1234341200004321"
    right = drawing(shown, f"{puzzle}>", "1234341221434321")
    assert (right["solved"], right["wrong"]) == (True, [])
    wrong = drawing(shown, f"{puzzle}>", "1134341221434321")
    assert not wrong["solved"]
    assert {0, 1} <= set(wrong["wrong"])
    language = drawing(
        {"kind": "sudoku", "whole": False},
        [{"role": "user", "content": f"puzzle: 4321000012340000 Answer: … puzzle: {puzzle}\nAnswer:"}],
        "<answer>\n1234341221434321\n</answer>",
    )
    assert (language["puzzle"], language["solved"]) == (puzzle, True)


@pytest.mark.parametrize(
    ("prompt", "completion", "whole"),
    [
        ("03,40,22=65>", "03+40+22", True),
        ("Numbers: [3, 40, 22]\nTarget: 65", "so <answer>3+40+22</answer>", False),
        (
            "Using only the numbers [3, 40, 22] create an expression that evaluates to exactly 65. "
            "For example, if the numbers are [2, 3, 4] and the target is 5",
            "<answer>\n40+22+3 = 65\n</answer>",
            False,
        ),
    ],
)
def test_countdowns_arithmetic_is_checked(prompt, completion, whole):
    shown = {"kind": "countdown", "whole": whole}
    found = drawing(shown, prompt, completion)
    assert (found["numbers"], found["target"], found["value"]) == ([3, 40, 22], 65, "65")
    assert found["uses"]
    assert found["solved"]
    wrong = drawing(shown, prompt, completion.replace("22", "23"))
    assert (wrong["value"], wrong["uses"], wrong["solved"]) == ("66", False, False)


def test_what_is_no_maze_no_grid_and_no_sum_is_shown_as_text():
    maze = scene(RunConfig(task=MazeConfig(size=7)))
    assert drawing(maze, [[1, 1], [1, 3]], [[1, 1], None, [1, 3]])["path"] == [[1, 1], None, [1, 3]]
    assert drawing(maze, "text", [[1, 1]]) is None
    assert drawing({"kind": "sudoku", "whole": True}, "no digits", "1") is None
    assert drawing({"kind": "countdown", "whole": True}, "no numbers", "1") is None
    assert drawing({"kind": "text"}, "a", "b") is None


def test_warnings_come_with_a_remedy(tmp_path):
    phase = {
        "phase": 1,
        "steps": 4,
        "ess": 0.5,
        "absorbed": 0.2,
        "absorbed_error": 0.05,
        "cause": "the buffer is small: raise --replay.prompts",
    }
    events = {
        "phase": [phase, {**phase, "cause": None, "ess": 0.001}],
        "audit": [{"falls_back": "the mean reward is off"}],
        "rollouts": [{"skipped": 3}, {"skipped": 0}],
        "evaluation": [{"distinct": 0.9, "valid": 0.99}, {"distinct": 0.2, "valid": 0.8}],
    }
    rows = [
        {"event": kind, "step": 4, "tilt": place, **row}
        for kind, rows in events.items()
        for place, row in enumerate(rows)
    ]
    log = read_log(tmp_path / "metrics.jsonl", rows)
    summary = {
        "too_long": {"train": 5},
        "outcome": {"kind": "not absorbed", "text": "moved. Raise --optimizer.lr"},
    }
    found = advice(log, summary)
    assert all(one["fix"] for one in found)
    assert [one["what"].split()[0] for one in found] == [
        *("The", "Phase", "Phase", "Rollouts", "The", "5", "Diversity", "Fewer")
    ]
    assert found[1] == {
        "what": "Phase 2 (absorbed: 20% ± 5%): the buffer is small.",
        "fix": "raise --replay.prompts",
    }
    assert advice(read_log(tmp_path / "metrics.jsonl", []), {}) == []


def test_a_warning_calls_a_share_below_its_error_not_yet_measurable(tmp_path):
    phase = {
        "event": "phase",
        "step": 4,
        "tilt": 0.0,
        "phase": 0,
        "steps": 4,
        "ess": 0.5,
        "cause": "few: more",
    }
    log = read_log(tmp_path / "metrics.jsonl", [{**phase, "absorbed": 0.1, "absorbed_error": 0.2}])
    (found,) = advice(log, {})
    assert found["what"] == "Phase 1 (absorbed: not yet measurable): few."


def test_the_cause_of_the_outcome_is_not_a_second_warning(tmp_path):
    phase = {"event": "phase", "steps": 4, "ess": 0.5, "cause": "few rows: add some"}
    rows = [{**phase, "step": 4, "tilt": 0.0, "phase": 0}, {**phase, "step": 8, "tilt": 1.0, "phase": 1}]
    log = read_log(tmp_path / "metrics.jsonl", rows)
    text = "held-out reward 0.1 → 0.1. In phase 1 few rows: add some"
    first, second = advice(log, {"outcome": {"kind": "not absorbed", "text": text}})
    assert "0.1 → 0.1. In phase 1 few rows." in first["what"]
    assert (first["fix"], second["what"][:7]) == ("add some", "Phase 2")
    assert len(advice(log, {"outcome": {"kind": "learnt", "text": text}})) == 2


def test_of_many_phases_with_a_warning_the_latest_are_listed_and_the_others_counted(tmp_path):
    phases = [
        {"event": "phase", "step": k, "phase": k, "tilt": float(k), "cause": "few prompts: raise it"}
        for k in range(1000)
    ]
    found = [one["what"] for one in advice(read_log(tmp_path / "metrics.jsonl", phases), {})]
    assert len(found) == WARNINGS + 1
    assert [found[0].split()[1], found[-2].split()[1]] == ["981", "1000"]
    assert found[-1] == "980 phases before phase 981 have such warnings too."


def test_a_log_forgets_what_was_written_after_the_step_of_a_resume(tmp_path):
    rows = [
        *({"event": "step", "step": step, "tilt": 0.0, "loss": 1.0} for step in (1, 2, 3, 4, 5)),
        {"event": "evaluation", "step": 0, "tilt": 0.0, "reward": 0.1},
        {"event": "evaluation", "step": 5, "tilt": 1.0, "reward": 0.9},
        {"event": "audit", "step": 5, "tilt": 1.0, "falls_back": "the mean reward is off"},
        {"event": "resumed", "step": 3, "tilt": 0.0},
        {"event": "step", "step": 4, "tilt": 0.0, "loss": 2.0},
    ]
    log = read_log(tmp_path / "metrics.jsonl", rows)
    assert (log.rewards, log.fallback) == ((0.1,), None)
    assert [row["loss"] for row in log.curves["step"]] == [1.0, 1.0, 1.0, 2.0]
    assert verdict(log, {})["text"] == "Not finished, at step 4."


@pytest.mark.parametrize(
    "damage",
    [
        {"tilt": [1]},
        {"tilt": "high"},
        {"skipped": "three"},
        {"skipped": math.nan},
        {"step": True},
        {"event": ["rollouts"]},
        {"seconds": {}},
    ],
)
def test_a_row_with_a_value_of_a_wrong_type_is_a_damaged_line(damage, tmp_path):
    rows = [{"event": "rollouts", "step": step, "tilt": 0.0, "skipped": 1} for step in (1, 2, 3)]
    rows[1] |= damage
    with pytest.warns(DtmWarning, match="1 damaged lines are skipped, the first is line 2"):
        log = read_log(tmp_path / "metrics.jsonl", rows)
    assert log.skipped == 2
    assert [row["step"] for row in log.curves["rollouts"]] == [1, 3]
