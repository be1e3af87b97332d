"""A checkpoint in LLaDA's layout with a tokenizer goes through whole runs."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
from dataclasses import replace

import pytest
import torch

import dtm
from checkpoints import VOCABULARY
from dtm.cli import main
from dtm.config import EvaluationConfig, LanguageConfig
from dtm.errors import ConfigError, DataError
from dtm.loop.assemble import assemble
from dtm.loop.plan import training_plan
from ending import FINISHED

pytest.importorskip("bitsandbytes")
pytest.importorskip("transformers")

ITEMS = [([3, 4, n], 7 + n) for n in range(1, 120)]


@pytest.fixture
def llada(write_talking):
    """A random model in LLaDA's layout that can read and write."""
    return write_talking("llada")


@pytest.fixture
def data(tmp_path):
    """A data folder with small Countdown files."""
    folder = tmp_path / "data"
    folder.mkdir()
    train = [{"nums": numbers, "target": target} for numbers, target in ITEMS]
    test = [{"input": f"{n},2,3", "output": str(n + 5)} for n in range(20, 30)]
    for name, rows in (("countdown_cd3_train_subset", train), ("countdown_cd3_test", test)):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


@pytest.fixture
def config(llada, data):
    """`llada-countdown` at the size of a test: NF4 base, LoRA, two phases."""
    recipe = dtm.recipe("llada-countdown")
    return replace(
        recipe,
        device="cpu",
        task=LanguageConfig(kind="countdown", data_dir=str(data), completion_length=16),
        model=replace(recipe.model, base=str(llada)),
        adapter=replace(recipe.adapter, rank=4),
        decoding=replace(recipe.decoding, block=8, tokens_per_step=4),
        tilt=replace(recipe.tilt, final=2 * recipe.tilt.step, max_steps=3),
        replay=replace(recipe.replay, prompts=4, completions=2, refresh_every=2),
        optimizer=replace(recipe.optimizer, batch=6, micro_batch=3, lr=1e-3),
        evaluation=EvaluationConfig(prompts=4, completions=1),
        checkpoint=replace(recipe.checkpoint, every=1),
    )


def noisy(prompts, completions, **columns):
    """A reward that a random model can earn, so that there is something to learn."""
    return [text.count("e") + 0.1 * len(text) for text in completions]


def die_in_the_second_phase(config, out):
    """Train until the first step of the second phase, then end without a word."""

    def die(event):
        if event.kind == "step" and event.step > config.tilt.max_steps:
            os.kill(os.getpid(), signal.SIGKILL)

    dtm.train(config, reward=noisy, out=out, callbacks=[die])


def test_a_quantised_run_is_killed_resumed_exported_and_measured(config, tmp_path):
    whole = dtm.train(config, reward=noisy, out=tmp_path / "whole")
    child = multiprocessing.get_context("fork").Process(
        target=die_in_the_second_phase, args=(config, tmp_path / "broken")
    )
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert not (tmp_path / "broken" / "summary.json").exists()
    resumed = dtm.train(config, reward=noisy, out=tmp_path / "broken", resume=True)
    for name, value in whole.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], value), name
    assert {"adapter_model.safetensors", "adapter_config.json", "README.md"} <= {
        path.name for path in resumed.folder.model.iterdir()
    }
    learnt = [value for name, value in resumed.model.named_parameters() if "lora_B" in name]
    assert any(value.abs().max() > 0 for value in learnt)
    config = replace(config, reward=replace(config.reward, function=None))
    measured = dtm.api.measure(
        assemble(config), resumed.model, EvaluationConfig(split="test", prompts=10, completions=1)
    )
    assert {
        "reward",
        "accuracy",
        "accuracy_add_sub",
        "distinct",
    } <= measured.measures.keys()
    assert "accuracy_mul_div" not in measured.measures  # none of these items needs × or ÷


@pytest.mark.parametrize("family", ["llada", pytest.param("dream", marks=pytest.mark.slow)])
def test_a_run_with_a_cache_and_early_ends_is_audited_and_learns(family, config, write_talking, tmp_path):
    base = write_talking(family, name=f"{family}-talking")
    config = replace(
        config,
        model=replace(config.model, base=str(base), nf4=False),
        decoding=replace(config.decoding, cache="block", refresh=2, until_end=True, batch=3),
        audit=replace(config.audit, share=0.5, agreement=0.0),
        tilt=replace(config.tilt, final=config.tilt.step),
    )
    run = dtm.train(config, reward=noisy, out=tmp_path / family)
    audits = run.events("audit")
    assert len(audits) == len(run.events("rollouts"))
    assert all(0 < row["agreement"] <= 1 and row["falls_back"] is None for row in audits)
    strict = replace(config, audit=replace(config.audit, agreement=1.0))
    fallen = dtm.train(strict, reward=noisy, out=tmp_path / f"{family}-strict").events("audit")
    assert ("less than audit.agreement 100.0%" in str(fallen[-1]["falls_back"])) == (
        min(row["agreement"] for row in audits) < 1
    )


def test_dropout_follows_the_seed(config, tmp_path):
    config = replace(
        config,
        model=replace(config.model, nf4=False),
        adapter=replace(config.adapter, dropout=0.5),
        tilt=replace(config.tilt, final=config.tilt.step),
    )
    torch.manual_seed(1)
    first = dtm.train(config, reward=noisy, out=tmp_path / "first").model.state_dict()
    torch.manual_seed(2)
    again = dtm.train(config, reward=noisy, out=tmp_path / "again").model.state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_prompts_are_padded_on_the_left_and_begin_once(config):
    task = assemble(config).task
    prompts = task.prompts("train", 6, torch.Generator().manual_seed(0))
    start = VOCABULARY["<|startoftext|>"]
    for row, attention in zip(prompts.tokens.tolist(), prompts.attention.tolist(), strict=True):
        real = [token for token, is_real in zip(row, attention, strict=True) if is_real]
        assert attention == sorted(attention)
        assert real[0] == start
        assert real.count(start) == 1
    assert prompts.columns["target"][0] == sum(prompts.columns["numbers"][0])


def test_published_evaluation_starts_inside_the_reasoning_tag(config):
    task = assemble(replace(config, task=replace(config.task, protocol="spg"))).task
    asked = task.prompts("test", 1, torch.Generator().manual_seed(0))
    assert task.chat.read(asked.tokens[0].tolist()).endswith("assistant\n\n<reasoning>")


def test_a_completion_is_read_up_to_its_end(config):
    task = assemble(config).task
    ids = [VOCABULARY[letter] for letter in "1+2"] + [1, VOCABULARY["9"], 1]
    assert task.read(torch.tensor([ids])) == ["1+2"]


def test_too_long_prompts_are_left_out_and_counted(config):
    lengths = sorted(len(ids) for _, ids in assemble(config).task._tokenised("train"))
    middle = lengths[len(lengths) // 2]
    some = assemble(replace(config, task=replace(config.task, prompt_length=middle))).task
    some.prompts("train", 3, torch.Generator().manual_seed(0))
    assert some.too_long["train"] == sum(length > middle for length in lengths) > 0
    told = some.describe_counts()
    assert told.startswith(f"{len(lengths) - some.too_long['train']} train, ")
    assert told.endswith(f"; {sum(some.too_long.values())} of more than {middle} tokens are left out")
    assert "left out" not in training_plan(assemble(config))["prompts"]
    with pytest.raises(DataError, match=r"all \d+ train prompts of countdown are longer than 20 tokens"):
        assemble(replace(config, task=replace(config.task, prompt_length=20)))


def test_own_rows_and_an_own_reward(config, llada, tmp_path):
    rows = [{"prompt": f"Say {n}.", "answer": str(n)} for n in range(30)]
    rows.append({"prompt": [{"role": "user", "content": "Say 99."}], "answer": "99"})
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, rows)))
    own = replace(
        config,
        recipe="llada-custom",
        task=LanguageConfig(kind="custom", data=str(tmp_path / "own.jsonl"), completion_length=8),
    )

    def says_it(prompts, completions, answer, **columns):
        return [
            float(wanted in text) + 0.01 * len(text) for text, wanted in zip(completions, answer, strict=True)
        ]

    run = dtm.train(own, reward=says_it, out=tmp_path / "run")
    assert run.is_finished
    with pytest.raises(ConfigError, match="your own data needs your own reward: --reward"):
        dtm.train(own, out=tmp_path / "other")


@pytest.mark.parametrize(
    ("lines", "named"),
    [
        ('{"prompt": "a"}\nnot json\n', "line 2: not JSON"),
        ('{"question": "a"}\n', 'line 1: must be an object with a "prompt"'),
        ('{"prompt": 5}\n', 'line 1: "prompt" must be text'),
        ('{"prompt": "a", "x": 1}\n{"prompt": "b"}\n', "line 2: has the columns none, the first row has x"),
        ('{"prompt": "a", "completions": 1}\n', "line 1: a reward already has the argument completions"),
        ('{"prompt": "a"}\n', "has 1 rows"),
        ('{"prompt": "café"}\n', "line 1: not UTF-8 text"),
    ],
)
def test_a_flaw_in_own_rows_is_named_with_its_line(lines, named, tmp_path):
    from dtm.tasks.language import read_own

    (tmp_path / "own.jsonl").write_text(lines, encoding="latin-1")
    with pytest.raises(DataError) as problem:
        read_own(tmp_path / "own.jsonl")
    assert named in str(problem.value)


def test_own_rows_may_hold_any_character_and_a_byte_order_mark(tmp_path):
    from dtm.tasks.language import read_own

    prompts = ["one\u2028line", "next\x85line", "café"]
    lines = [json.dumps({"prompt": prompt}, ensure_ascii=False) for prompt in prompts]
    (tmp_path / "own.jsonl").write_text("\n".join(lines), encoding="utf-8-sig")
    assert [row.prompt for row in read_own(tmp_path / "own.jsonl")] == prompts


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ([], "hf download GSAI-ML/LLaDA-8B-Instruct"),
        (["--model.base", "MODEL"], "name their folder with --data-dir"),
        (
            ["--model.base", "MODEL", "--data-dir", "nowhere"],
            "no file nowhere/countdown_cd3_train_subset.jsonl",
        ),
    ],
)
def test_what_is_missing_is_said_before_anything_starts(flags, named, llada, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    flags = [str(llada) if flag == "MODEL" else flag for flag in flags]
    assert main(["train", "llada-countdown", "--device", "cpu", *flags]) == 2
    assert named in " ".join(capsys.readouterr().err.split())


def test_a_download_that_broke_off_is_told_by_the_plan(write_talking, data, capsys):
    base = write_talking("llada", shards=3)
    flags = ["--model.base", str(base), "--data-dir", str(data), "--device", "cpu", "--dry-run"]
    assert main(["train", "llada-countdown", *flags]) in FINISHED
    (base / "model-00002-of-00003.safetensors").unlink()
    assert main(["train", "llada-countdown", *flags]) == 2
    assert "model-00002-of-00003.safetensors is absent" in " ".join(capsys.readouterr().err.split())


def test_a_benchmark_can_be_trained_without_any_file(llada, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("dtm.tasks.language.benchmarks.PUZZLES", 600)
    flags = ["--model.base", str(llada), "--data-dir", "generated", "--device", "cpu"]
    assert main(["train", "llada-countdown", *flags, "--dry-run", "--task.prompt-length", "5000"]) == 0
    assert "256 test" in " ".join(capsys.readouterr().out.split())
    assert main(["eval", str(llada), "--task", "countdown", "--data-dir", "generated"]) == 2
    assert "published items, not on generated ones" in " ".join(capsys.readouterr().err.split())


def test_a_model_without_a_tokenizer_is_refused(config, llada):
    (llada / "tokenizer.json").unlink()
    with pytest.raises(ConfigError, match=r"tokenizer\.json is missing"):
        assemble(config)


def test_a_dry_run_misses_bitsandbytes_as_the_run_would(llada, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    flags = ["--model.base", str(llada), "--data-dir", "generated", "--device", "cpu", "--model.nf4"]
    assert main(["train", "llada-countdown", *flags, "--dry-run"]) == 2
    assert "pip install -e '.[nf4]'" in " ".join(capsys.readouterr().err.split())
