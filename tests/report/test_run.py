"""What a finished run leaves behind."""

from __future__ import annotations

import json

import pytest

from dtm.config import RunConfig
from dtm.loop.progress import Progress
from dtm.report.card import model_card
from dtm.report.outcome import outcome
from dtm.report.run import read_samples, rise_error, summarise


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
    assert read_samples(tmp_path, first=True) == [([0], [1], 0.0)]
    assert read_samples(tmp_path, first=False) == [([0], [2], 0.0)]


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


PHASE = {"steps": 20, "ess": 0.5, "absorbed": 0.4, "absorbed_error": 0.1}


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


@pytest.mark.parametrize(
    ("rise", "error", "phases", "kind"),
    [
        (0.1, 0.04, [PHASE], "learnt"),
        (0.1, 0.06, [PHASE], "not measurable"),
        (-0.1, 0.06, [PHASE], "not measurable"),
        (-0.1, 0.04, [PHASE], "not absorbed"),
        (0.1, 0.06, [PHASE | {"ess": 0.06}], "step too large"),
        (0.1, 0.06, [PHASE | {"phase": 0, "cause": "it forgets"}], "not absorbed"),
        (0.1, 0.06, [PHASE | {"phase": 0, "cause": "few", "absorbed_error": None}], "not measurable"),
        (0.0, 0.0, [PHASE], "not absorbed"),
    ],
)
def test_a_rise_within_two_standard_errors_is_not_said_to_be_learnt(rise, error, phases, kind):
    config = RunConfig(recipe="mine")
    summary = summarise(config, progress(0.4, 0.4 + rise)) | {"rise_error": error}
    summary["outcome"] = found = outcome(summary, phases)
    assert found["kind"] == kind
    assert ("--evaluation.prompts" in found["text"]) == (kind == "not measurable")
    card = model_card(config, summary)
    assert ("tilt: a = 2" in card) == (kind == "learnt")
    assert ("without a measurable gain" in card) == (kind == "not measurable")


@pytest.mark.parametrize(("length", "is_cut_off"), [(63.5, True), (50.0, False)])
def test_completions_without_an_end_are_named_as_the_cause(length, is_cut_off):
    summary = summarise(RunConfig(), progress(0.2, 0.2)) | {"steps": 0}
    summary["tuned"]["length"], summary["base"]["length"] = 64.0, length
    found = outcome(summary, [PHASE | {"steps": 0}], room=64)
    assert found["kind"] == "nothing to learn"
    assert ("raise --task.completion-length" in found["text"]) == is_cut_off
    assert "completion-length" not in outcome(summary, [PHASE | {"steps": 0}])["text"]


def test_a_run_that_has_learnt_is_told_what_held_it_back():
    summary = summarise(RunConfig(), progress(0.2, 0.35)) | {"rise_error": 0.01}
    found = outcome(summary, [PHASE | {"phase": 0, "cause": "the weights rest on few rollouts"}])
    assert found["kind"] == "learnt"
    assert "In phase 1 the weights rest on few rollouts" in found["text"]


def evaluated(rewards: dict[str, list[float]]) -> list[tuple[str, str, float]]:
    return [(prompt, "completion", reward) for prompt, each in rewards.items() for reward in each]


def test_the_error_of_a_rise_is_that_of_the_rises_of_prompts():
    base = {"abcd"[k]: [0.1 * k, 0.1 * k] for k in range(4)}
    alike = {name: [reward + 0.3 for reward in each] for name, each in base.items()}
    assert rise_error(evaluated(base), evaluated(alike)) == pytest.approx(0.0, abs=1e-12)
    unlike = {
        name: [each[0] + rise] * 3 for (name, each), rise in zip(base.items(), (0, 0, 2, 2), strict=True)
    }
    # Rises of 0, 0, 2, 2: their standard deviation is √(4/3), the error half of it.
    assert rise_error(evaluated(base), evaluated(unlike)) == pytest.approx((4 / 3) ** 0.5 / 2)


def test_the_error_of_a_rise_on_one_prompt_is_that_of_its_completions():
    before, after = evaluated({"a": [0.0, 1.0]}), evaluated({"a": [1.0, 1.0, 4.0]})
    assert rise_error(before, after) == pytest.approx((0.5 / 2 + 3 / 3) ** 0.5)
    assert rise_error(before[:1], after) is None
    assert rise_error([], after) is None
