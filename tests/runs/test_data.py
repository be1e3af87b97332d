"""Rows given in Python: a run on them can be opened, continued and measured without them."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import dtm
from dtm.cli import main
from dtm.config import EvaluationConfig, LanguageConfig
from dtm.config.serialise import to_yaml
from dtm.errors import ConfigError, DataError
from dtm.loop.assemble import assemble
from dtm.loop.fingerprint import run_fingerprint
from dtm.report.card import model_card
from dtm.runs.data import store_rows, with_data

ROWS = [{"prompt": f"Say {n}.", "answer": str(n)} for n in range(30)]


def says_it(prompts, completions, answer, **columns):
    """A reward with a column."""
    pairs = zip(completions, answer, strict=True)
    return [float(wanted in text) + 0.1 * len(set(text)) for text, wanted in pairs]


@pytest.fixture
def config(write_talking):
    """`llada-custom` at the size of a test."""
    pytest.importorskip("transformers")
    recipe = dtm.recipe("llada-custom")
    return replace(
        recipe,
        device="cpu",
        task=LanguageConfig(kind="custom", completion_length=8),
        model=replace(recipe.model, base=str(write_talking("llada")), nf4=False),
        adapter=replace(recipe.adapter, rank=4),
        decoding=replace(recipe.decoding, block=8, tokens_per_step=4),
        tilt=replace(recipe.tilt, final=recipe.tilt.step, max_steps=2),
        replay=replace(recipe.replay, prompts=4, completions=2, refresh_every=2),
        optimizer=replace(recipe.optimizer, batch=4, micro_batch=4, lr=1e-3),
        evaluation=EvaluationConfig(prompts=2, completions=1),
    )


def test_a_run_on_rows_in_memory_is_opened_measured_and_continued_without_them(config, tmp_path, capsys):
    def stop(event):
        if event.kind == "step":
            raise dtm.errors.RewardError("stop here")

    out = tmp_path / "run"
    with pytest.raises(dtm.errors.RewardError):
        dtm.train(config, data=ROWS, reward=says_it, out=out, callbacks=[stop])
    with pytest.raises(ConfigError, match=r"started with another configuration:\s+task\.data: '.*rows-"):
        dtm.train(config, data=ROWS[:20], reward=says_it, out=out, resume=True)
    run = dtm.train("llada-custom", data=ROWS, reward=says_it, out=out, resume=True)
    assert run.is_finished
    kept = store_rows(ROWS, tmp_path)
    assert run.config.task.data == str(kept)
    assert [json.loads(line) for line in kept.read_text().splitlines()] == ROWS
    again = dtm.Run.open(out, reward=says_it)
    assert again.evaluate(EvaluationConfig(prompts=2, completions=1)).measures["reward"] >= 0
    flags = ["--device", "cpu", "--model.base", config.model.base, "--data", str(kept), "--tilt.final", "1"]
    flags += ["--reward", f"{__file__}:says_it", "--decoding.block", "8", "--task.completion-length", "8"]
    assert main(["train", "llada-custom", *flags, "--model.no-nf4", "--tilt.step", "1", "--dry-run"]) == 0
    assert "25 train, 2 validation, 3 test" in " ".join(capsys.readouterr().out.split())


def test_the_form_of_the_rows_does_not_change_the_run(config, tmp_path):
    text = "prompt,answer\n" + "".join(f"{row['prompt']},{row['answer']}\n" for row in ROWS)
    (tmp_path / "rows.csv").write_text(text)
    forms = [ROWS, str(tmp_path / "rows.csv"), store_rows(ROWS, tmp_path)]
    made = [
        run_fingerprint(assemble(with_data(config, form, tmp_path / "run"), reward=says_it)) for form in forms
    ]
    assert made[0] == made[1] == made[2]
    other = with_data(config, ROWS[:-1], tmp_path / "run")
    assert run_fingerprint(assemble(other, reward=says_it))["training"] != made[0]["training"]


def test_rows_that_cannot_be_stored_or_have_no_place_are_refused(config, tiny, tmp_path):
    bad = [*ROWS, {"prompt": "a", "answer": {1, 2}}]
    with pytest.raises(DataError, match=r'data, row 31, column "answer": Object of type set is not JSON'):
        with_data(config, bad, tmp_path / "run")
    with pytest.raises(ConfigError, match=r"data: maze-small is a run of the task maze, .* llada-custom"):
        dtm.train(tiny, data=ROWS, out=tmp_path / "run")
    with pytest.raises(ConfigError, match="data: an Assembly is complete; give the objects to assemble"):
        dtm.train(assemble(tiny), data=ROWS, out=tmp_path / "run")
    with pytest.raises(ConfigError, match="data and task: give one of the two; a task has its own rows"):
        dtm.train(config, data=ROWS, task=object(), out=tmp_path / "run")
    assert not list(tmp_path.glob("rows-*")), "nothing is written for a run that cannot start"


def test_a_card_names_a_data_set_of_the_hub_and_no_folder(config):
    summary = {"tuned": {"reward": 1.0}, "base": {"reward": 0.0}, "tilt": 9.0, "steps": 36, "finished": ""}
    hub = replace(config, task=replace(config.task, data="hub:me/rows:test"))
    card = model_card(hub, summary)
    assert "\ndatasets: [me/rows]\n" in card
    assert "- data: own rows, me/rows, split test, of the hub" in card
    assert "hub:me/rows:test" in to_yaml(hub)
    local = model_card(replace(config, task=replace(config.task, data="/somewhere/rows.csv")), summary)
    assert "- data: own rows, rows.csv\n" in local
    assert "datasets:" not in local
