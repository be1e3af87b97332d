"""The examples run, and what they promise comes out."""

from __future__ import annotations

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import pytest

from dtm.loading import load_object

EXAMPLES = Path(__file__).parents[1] / "examples"


def load(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_one_file_reaches_the_exact_tilted_law():
    table = load("dtm_in_one_file").run(final=3.0, h=1.5, pretraining=500, steps=150, width=96)
    base, tuned, exact = (table[name] for name in ("base", "tuned", "exact"))
    assert base["mean reward"] < tuned["mean reward"]
    assert tuned["mean reward"] == pytest.approx(exact["mean reward"], abs=0.05)
    assert tuned["entropy"] == pytest.approx(exact["entropy"], abs=0.3)
    assert tuned["TV to exact"] < 0.3 * base["TV to exact"]
    assert tuned["KL(exact, .)"] < 0.2 * base["KL(exact, .)"]


def test_custom_reward_prefers_short_paths_and_marks_invalid_ones():
    example = load("custom_reward")
    prompts = example.MAZE.prompts("test", 1, example.dtm.random.stream(0, "test"))
    (prompt,) = prompts.views
    assert example.reward([prompt], [[prompt[0], None, prompt[1]]]) == [-0.4]
    assert example.reward([prompt], [[]]) == [-0.4]
    paths = example.MAZE.read(
        example.MAZE.examples("test", 64, example.dtm.random.stream(1, "test")).tokens[:, 3:]
    )
    own = [(path[0], path[-1]) for path in paths]
    scores = example.reward(own, paths)
    assert all(0 < score <= 1 for score in scores)
    back_and_forth = [[path[0], path[1], *path] for path in paths]
    assert all(
        longer < score for longer, score in zip(example.reward(own, back_and_forth), scores, strict=True)
    )


def test_custom_reward_runs_from_python_and_by_name(tmp_path, monkeypatch):
    example = load("custom_reward")
    config = example.short_run()
    tiny = replace(
        config,
        tilt=replace(config.tilt, step=2.5, final=2.5, max_steps=2),
        replay=replace(config.replay, prompts=4, completions=4),
        optimizer=replace(config.optimizer, batch=8),
        evaluation=replace(config.evaluation, prompts=4, completions=2),
    )
    run = example.main(tiny, out=tmp_path / "run")
    assert run.is_finished
    assert -0.4 <= run.summary["tuned"]["reward"] <= 1
    monkeypatch.chdir(EXAMPLES.parent)
    assert load_object("examples/custom_reward.py:reward", "reward")([], []) == []


def test_own_model_is_tuned_towards_the_reward():
    base, tuned = load("bring_your_own_model").main(pretraining=200, steps=40)
    assert tuned > base + 0.02


def test_a_loop_of_your_own_raises_the_reward():
    pytest.importorskip("peft")
    pytest.importorskip("transformers")
    rewards = load("own_loop").main(phases=1, steps=40)
    assert rewards[-1] > rewards[0] + 0.03


@pytest.mark.slow
def test_the_cells_of_the_tour_run_in_order(capsys):
    cells = json.loads((EXAMPLES / "tour.ipynb").read_text(encoding="utf-8"))["cells"]
    names: dict = {"__name__": "tour"}
    for cell in cells:
        if cell["cell_type"] == "code":
            tiny = "PROMPTS, COMPLETIONS, STEPS, BATCH, PHASES = 4, 4, 1, 8, 1"
            is_size = "parameters" in cell["metadata"].get("tags", [])
            exec(tiny if is_size else "".join(cell["source"]), names)
    printed = capsys.readouterr().out
    assert names["run"].is_finished
    assert names["config"].replay.prompts == 4
    assert "all 1 claims hold" in printed
    shown = [text for cell in cells for output in cell.get("outputs", ()) for text in output["text"]]
    assert 0 < len("".join(shown)) < 5000
