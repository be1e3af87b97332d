"""Runs handed on: what is written loads elsewhere, equals the run's model, and says how it was made."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import dtm
from dtm.cli import main
from dtm.config import AdapterConfig, EvaluationConfig, LanguageConfig
from dtm.config.serialise import to_yaml, update
from dtm.evaluation.subject import ModelFiles, Subject
from dtm.models.export import load_adapter
from dtm.report.card import model_card

TOKENS = torch.randint(6, 100, (2, 12), generator=torch.Generator().manual_seed(0))


def run(*arguments: object) -> int:
    return main([str(argument) for argument in arguments])


@pytest.fixture
def tuned(write_talking, tmp_path):
    """A finished adapter run over a model that can write, quantised as the recipe has it."""
    for library in ("bitsandbytes", "transformers"):
        pytest.importorskip(library)
    data = tmp_path / "data"
    data.mkdir()
    train = [{"nums": [3, 4, n], "target": 7 + n} for n in range(5, 45)]
    test = [{"input": f"{n},2,3", "output": str(n + 5)} for n in range(20, 23)]
    for name, rows in (("countdown_cd3_train_subset", train), ("countdown_cd3_test", test)):
        (data / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    recipe = dtm.recipe("llada-countdown")
    config = replace(
        recipe,
        device="cpu",
        task=LanguageConfig(kind="countdown", data_dir=str(data), completion_length=8),
        model=replace(recipe.model, base=str(write_talking("llada"))),
        adapter=AdapterConfig(rank=4, alpha=8.0),
        decoding=replace(recipe.decoding, block=8, tokens_per_step=4),
        tilt=replace(recipe.tilt, final=recipe.tilt.step, max_steps=2),
        replay=replace(recipe.replay, prompts=4, completions=2),
        optimizer=replace(recipe.optimizer, batch=6, micro_batch=6, lr=1e-2),
        evaluation=EvaluationConfig(prompts=2, completions=1),
    )

    def letters(prompts, completions, **columns):
        return [0.1 * len(set(text)) for text in completions]

    return dtm.train(config, reward=letters, out=tmp_path / "run")


def test_an_adapter_run_is_examined_exported_and_merged(tuned, tmp_path, capsys):
    options = ("--task", "countdown", "--length", 32, "--limit", 2, "--device", "cpu")
    assert run("eval", tuned.path, *options) == 0  # the data are the run's, and the result lies with it
    result = json.loads((tuned.path / "evaluations" / "countdown-dtm-32-first2.json").read_text())
    assert result["fingerprint"]["model"]["adapter"] is not None
    assert result["fingerprint"]["numerics"]["nf4"] is True

    assert run("export", tuned.path, "--out", tmp_path / "adapter") == 0
    assert {path.name for path in (tmp_path / "adapter").iterdir()} == {
        "adapter_config.json", "adapter_model.safetensors", "README.md", "curves.png", "fingerprint.json"
    }  # fmt: skip
    base = dtm.load_model(tuned.config.model.base)
    expected = load_adapter(tmp_path / "adapter", base)[0].logits(TOKENS)
    assert not torch.equal(expected, base.logits(TOKENS))

    assert run("export", tuned.path) == 0
    same = load_adapter(tuned.path / "export", dtm.load_model(tuned.config.model.base))[0]
    assert torch.equal(same.logits(TOKENS), expected)
    assert run("export", tuned.path, "--merged") == 0
    merged = Subject.load(ModelFiles.find(str(tuned.path / "merged")), "cpu")  # the tokenizer came along
    torch.testing.assert_close(merged.model.logits(TOKENS), expected, atol=1e-4, rtol=0)

    card = (tuned.path / "merged" / "README.md").read_text()
    for said in (
        f"- base: `{Path(tuned.config.model.base).name}` in NF4",  # a card names no folder of a machine
        "- adapter: LoRA, rank 4, α 8, targets all",
        "- method: c-dtm (control_variate one, guard False,",
        "- 2 steps, nothing to learn: held-out reward",  # answers are cut off: no tilt is claimed
        "letters",
        "- data: countdown, dtm prompts, completions of 8 tokens",
        f"commit {tuned.summary['commit']}",
        "| reward | ",
        "| countdown | dtm | 32 | 2 | accuracy 0.0%, ",
        "The adapter is merged",
    ):
        assert said in card
    assert "is a PEFT adapter" in (tmp_path / "adapter" / "README.md").read_text()


def test_an_exported_adapter_is_examined_like_its_run(tuned, tmp_path):
    assert run("export", tuned.path, "--out", tmp_path / "adapter") == 0
    first, second = ModelFiles.find(str(tuned.path)), ModelFiles.find(str(tmp_path / "adapter"))
    assert (first.base, first.weights, first.tokenizer) == (second.base, second.weights, second.tokenizer)
    assert (first.nf4, second.nf4) == (True, False)


def test_a_run_that_trained_all_weights_of_a_language_model_keeps_its_tokenizer(write_talking, tmp_path):
    pytest.importorskip("transformers")
    base = write_talking("dream")
    (base / "merges.txt").write_text("")  # a part of Dream's tokenizer on the hub
    recipe = dtm.recipe("llada-countdown")
    config = replace(recipe, model=replace(recipe.model, base=str(base), nf4=False), adapter=AdapterConfig())
    folder = tmp_path / "run"
    dtm.save_model(dtm.load_model(base), folder / "model")
    (folder / "config.yaml").write_text(to_yaml(config))
    (folder / "environment.json").write_text('{"commit": "abc"}')
    measured = {"reward": 0.5}
    summary = {"commit": "abc", "finished": "", "tilt": 1.0, "steps": 3, "base": measured, "tuned": measured}
    (folder / "summary.json").write_text(json.dumps(summary))
    tuned = Subject.load(ModelFiles.find(str(folder)), "cpu")
    assert tuned.chat.read(tuned.chat.ask("hi")).endswith("assistant\n\n")
    assert run("export", folder, "--out", tmp_path / "model") == 0
    again = Subject.load(ModelFiles.find(str(tmp_path / "model")), "cpu")
    assert torch.equal(again.model.logits(TOKENS), tuned.model.logits(TOKENS))
    assert (tmp_path / "model" / "merges.txt").is_file()


def test_a_run_of_all_weights_is_exported_as_a_model(finished, tmp_path, capsys):
    assert run("export", finished.path, "--out", tmp_path / "model") == 0
    again = dtm.load_model(tmp_path / "model")
    for name, value in finished.model.state_dict().items():
        assert torch.equal(again.state_dict()[name], value)
    card = (tmp_path / "model" / "README.md").read_text()
    assert "- reward: the task's own" in card
    assert "- data: paths through a generated 7×7 maze, seed 0" in card
    assert f"| reward | {finished.summary['base']['reward']:.3f} |" in card


def test_the_card_of_a_baseline_names_its_settings(tiny):
    config = update(tiny, {"method": {"name": "spg"}}, "here")
    summary = {"tuned": {"reward": 1.0}, "base": {"reward": 0.0}, "tilt": 9.0, "steps": 36, "finished": ""}
    card = model_card(config, summary)
    assert "tuned by spg" in card
    assert "- method: spg (updates 4, preset fixed, draws 2," in card
    assert "- iterations: 9 in 36 steps" in card


@pytest.mark.parametrize(
    ("name", "text"),
    [("fingerprint.json", '{"a": 1}'), ("summary.json", '{"a": 1}'), ("environment.json", "[]")],
)
def test_a_damaged_file_of_a_run_is_named_before_an_export_is_begun(name, text, finished, tmp_path, capsys):
    shutil.copytree(finished.path, tmp_path / "run")
    (tmp_path / "run" / name).write_text(text)
    assert run("export", tmp_path / "run", "--out", tmp_path / "model") == 2
    assert f"{name} is damaged" in capsys.readouterr().err
    assert not (tmp_path / "model").exists()


def test_mistakes_are_named(finished, tiny, tmp_path, capsys):
    assert run("export", finished.path, "--out", tmp_path / "model", "--merged") == 2
    assert "no adapter to merge" in capsys.readouterr().err
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    assert run("export", finished.path, "--out", tmp_path / "full") == 2
    assert "is not empty" in capsys.readouterr().err
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "config.yaml").write_text(to_yaml(tiny))
    assert run("export", tmp_path / "half", "--out", tmp_path / "new") == 2
    assert "has not finished" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
