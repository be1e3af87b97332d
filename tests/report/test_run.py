"""What a finished run leaves behind."""

from __future__ import annotations

import json

import pytest

from dtm.config import RunConfig
from dtm.loop.progress import Progress
from dtm.report.card import model_card
from dtm.report.outcome import outcome
from dtm.report.run import read_samples, summarise


def progress(*rewards: float, best: float | None = 0.8) -> Progress:
    known = {} if best is None else {"best": best}
    rows = [{"tilt": float(k), "reward": r, "valid": 0.5, **known} for k, r in enumerate(rewards)]
    return Progress(
        step=40, phase=2, tilt=2.0, evaluations=rows, seconds=90.0, finished="reached the final tilt A = 2"
    )


def test_the_summary_sets_the_first_evaluation_against_the_last():
    summary = summarise(RunConfig(recipe="mine", seed=3), progress(0.2, 0.9, 0.35))
    assert summary["base"] == {"reward": 0.2, "valid": 0.5}
    assert summary["tuned"] == {"reward": 0.35, "valid": 0.5}
    assert summary["best"] == 0.8
    assert summary["gap_closed"] == pytest.approx(0.15 / 0.6)
    assert (summary["minutes"], summary["steps"], summary["tilt"]) == (1.5, 40, 2.0)
    assert (summary["recipe"], summary["seed"]) == ("mine", 3)


@pytest.mark.parametrize(("tuned", "closed"), [(0.1, -1 / 6), (0.8, 1.0)])
def test_a_gap_can_widen_and_close(tuned, closed):
    assert summarise(RunConfig(), progress(0.2, tuned))["gap_closed"] == pytest.approx(closed)


def test_a_base_that_is_best_already_has_no_gap():
    assert summarise(RunConfig(), progress(0.8, 0.7))["gap_closed"] is None


def test_without_a_best_reward_there_is_no_gap_to_speak_of():
    summary = summarise(RunConfig(), progress(0.2, 0.3, best=None))
    assert "best" not in summary
    assert "gap_closed" not in summary


def test_the_card_names_base_method_and_measures():
    config = RunConfig(recipe="mine", seed=3)
    card = model_card(config, summarise(config, progress(0.2, 0.35)))
    assert "| reward | 0.200 | 0.350 |" in card
    assert "method: c-dtm (control_variate adaptive, guard True," in card
    assert "reached the final tilt A = 2" in card
    assert "seed 3" in card


def test_the_first_and_the_last_samples_are_told_apart(tmp_path):
    for step, token in ((0, 1), (80, 2), (9, 3)):
        row = {"prompt": [0], "completion": [token], "reward": 0.0}
        (tmp_path / f"step-{step:08d}.jsonl").write_text(json.dumps(row) + "\n")
    assert read_samples(tmp_path, first=True) == [([0], [1])]
    assert read_samples(tmp_path, first=False) == [([0], [2])]


def test_a_finished_run_has_everything_its_folder_promises(finished):
    present = {path.name for path in finished.path.iterdir()}
    assert present >= {
        "config.yaml", "environment.json", "metrics.jsonl", "samples", "checkpoints", "figures", "model",
        "summary.json", "report.html",
    }  # fmt: skip
    assert (finished.folder.figures / "samples.png").read_bytes().startswith(b"\x89PNG")
    environment = json.loads((finished.path / "environment.json").read_text())
    assert environment["torch"]
    assert environment["threads"] == 1
    assert finished.summary["finished"] == "reached the final tilt A = 2"
    assert len(finished.events("evaluation")) == 3


PHASE = {"steps": 20, "ess": 0.5, "absorbed": 0.4}


@pytest.mark.parametrize(
    ("rewards", "steps", "phases", "kind", "advice"),
    [
        ((0.2, 0.35), 40, [PHASE], "learnt", "0.2 → 0.35"),
        ((0.2, 0.2), 0, [PHASE | {"steps": 0, "absorbed": None}], "nothing to learn", "the same reward"),
        ((0.8, 0.7), 40, [PHASE], "nothing to learn", "best possible"),
        ((0.2, 0.1), 40, [PHASE, PHASE | {"ess": 0.06}], "step too large", "--tilt.step auto"),
        ((0.2, 0.1), 40, [PHASE], "not absorbed", "--tilt.max-steps"),
        ((0.2, 0.1), 40, [PHASE | {"phase": 0, "cause": "it forgets"}], "not absorbed", "phase 1 it forgets"),
        ((0.2, 0.2), 40, [], "not absorbed", "--tilt.max-steps"),
    ],
)
def test_the_outcome_says_whether_a_run_has_learnt_and_what_to_change(rewards, steps, phases, kind, advice):
    config = RunConfig(recipe="mine")
    summary = summarise(config, progress(*rewards)) | {"steps": steps}
    summary["outcome"] = found = outcome(summary, phases)
    assert found["kind"] == kind
    assert advice in found["text"]
    if advice == "--tilt.max-steps":  # methods without a tilt have other flags
        assert "--iterate.iterations" in outcome(summary, phases, anneals=False)["text"]
    card = model_card(config, summary)
    assert ("tilt: a = 2" in card) == (kind == "learnt")
    assert ("not tuned" in card) == (kind != "learnt")
