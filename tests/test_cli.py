"""The command line, called in-process: what it prints, what it writes, and its exit codes."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

import dtm
from dtm.cli import COMMANDS, main
from dtm.cli.parse import SHAPE, with_flags
from dtm.config import configure_method
from dtm.config.serialise import leaves, to_yaml
from dtm.errors import ConfigError
from dtm.loop.registry import check_settings
from dtm.recipes import RECIPES
from ending import FINISHED
from timeless import timeless_rows


@pytest.fixture
def call(capsys, tmp_path, monkeypatch):
    """Run a command in an empty folder; its exit code and all that it printed."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str]:
        try:
            code = main(arguments)
        except SystemExit as end:  # argparse and tyro leave this way
            code = end.code
        printed = capsys.readouterr()
        return code, " ".join((printed.out + printed.err).split())

    return run


# ── help and recipes ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",), ("help",)])
def test_help_lists_every_command_and_explains_the_symbols(arguments, call):
    code, text = call(*arguments)
    assert code == 0
    for name in COMMANDS:
        assert f" {name} " in text
    assert "ρ_a ∝ ρ_0 e^(a r)" in text


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command, call):
    code, text = call(command, "--help")
    assert code == 0
    assert f"usage: dtm {command}" in text


def test_a_dry_run_says_how_much_of_approximate_decoding_is_checked(call):
    flags = ("train", "maze-small", "--dry-run", "--decoding.cache", "block")
    assert "audit: none: the error of decoding's approximations is not measured" in call(*flags)[1]
    text = call(*flags, "--audit.share", "0.05", "--audit.shift", "0.02")[1]
    assert (
        "audit: 5% of the rollouts decoded again exactly; at least 50% of the tokens equal, the mean" in text
    )


OWN = ("--out", "--resume", "--data", "--reward", "--config", "--dry-run", "--method", "--task")


@pytest.mark.parametrize("recipe", RECIPES)
def test_help_on_a_recipe_fits_two_screens_and_has_its_own_options(recipe, capsys):
    assert main(["train", recipe, "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 80
    assert max(map(len, lines)) <= 110
    text = "\n".join(lines)
    assert all(f"  {flag}" in text for flag in OWN)
    assert all(flag in text for flag in ("--tilt.step", "--method.control-variate", "--model.base"))
    assert text.index("--out") < text.index("--tilt.step")


def test_help_shows_the_chosen_method_and_its_loop_and_no_other(call):
    code, text = call("train", "maze-small", "--method", "spg", "--help")
    assert code == 0
    assert "--method.upper-beta" in text
    assert "--iterate.iterations" in text
    assert "--tilt" not in text
    assert "--method.control-variate" not in text


def test_help_on_a_section_and_on_everything(call):
    code, text = call("train", "maze-small", "--help", "optimizer")
    assert code == 0
    assert "--optimizer.micro-batch N (now: none) Rows per forward pass" in text
    assert "--tilt.step" not in text
    everything = call("train", "maze-small", "--help", "all")[1]
    fields = [name for name in leaves(dtm.recipe("maze-small")) if "." in name]
    shown = [name for name in fields if not name.startswith(("pretrain.", "iterate."))]
    shown = [name for name in shown if name not in ("method.name", "task.kind")]
    shown = [name for name in shown if f"--{name}" not in SHAPE]
    assert all(f"--{name.replace('_', '-')}" in everything for name in shown)
    code, text = call("train", "maze-small", "--help", "optimiser")
    assert code == 2
    assert "Did you mean 'optimizer'?" in text


@pytest.mark.parametrize("code", ["import dtm", "from dtm.cli import main; main(['--help'])"])
def test_importing_and_asking_for_help_load_no_torch(code):
    check = f"import sys; {code}; print('torch' in sys.modules, 'numpy' in sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=True)
    assert done.stderr.split() == ["False", "False"]


def test_every_public_name_is_there():
    assert dir(dtm) == sorted(dtm.__all__)
    for name in dtm.__all__:
        assert getattr(dtm, name) is not None
    with pytest.raises(AttributeError, match="'nothing'"):
        _ = dtm.nothing


def test_the_version_is_printed(call):
    code, text = call("--version")
    assert code == 0
    assert text.startswith("dtm 0.")


def test_recipes_are_listed_and_shown_as_yaml(call, capsys):
    code, text = call("recipes")
    assert code == 0
    assert all(name in text for name in RECIPES)
    assert main(["recipes", "show", "maze-small"]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert shown == yaml.safe_load(to_yaml(dtm.recipe("maze-small")))


# ── mistakes ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["tran"], "no command 'tran'. Did you mean 'train'?"),
        (["train", "maze-smal"], "no recipe 'maze-smal'. Did you mean 'maze-small'?"),
        (["recipes", "show", "maze-smal"], "Did you mean 'maze-small'?"),
        (["recipes", "show"], "which recipe?"),
        (["train", "maze-small", "--tilt.stepp", "1"], "--tilt.stepp"),
        (["train", "maze-small", "--tilt.step", "fast"], "fast"),
        (["train", "maze-small", "--tilt.step", "99"], "Lower --tilt.step or raise --tilt.final"),
        (["train", "maze-small", "--optimizer.lr", "inf"], "optimizer.lr must be positive and finite"),
        (
            ["train", "maze-small", "--method", "spg", "--replay.completions", "1"],
            "--replay.completions 6",
        ),
        (["train", "maze-small", "--method.preset", "published"], "--method.preset"),
        (["train", "maze-small", "--method", "spg", "--method.preset", "publishd"], "publishd"),
        (["train", "maze-small", "--method", "spgg"], "no method 'spgg'. Did you mean 'spg'?"),
        (["train", "maze-small", "--method", "nowhere.py:Mine"], "there is no file nowhere.py"),
        (["train", "maze-small", "--objective", "spg"], "methods since 0.2. Use --method"),
        (["train", "maze-small", "--objective.guard", "false"], "Use --method.guard"),
        (["train", "maze-small", "--method", "spg", "--tilt.step", "2"], "spg does not use it"),
        (["train", "maze-small", "--iterate.iterations", "2"], "c-dtm does not use it"),
        (["train", "maze-small", "--task", "mase"], "Did you mean 'maze'?"),
        (["train", "maze-small", "--config", "nowhere.yaml"], "no configuration file at nowhere.yaml"),
        (["train", "maze-small", "--reward", "length"], "must be written module:name"),
        (["train", "maze-small", "--model.base", "maze-smal"], "Did you mean 'maze-small'?"),
        (["train", "maze-small", "--method.control-variate", "men"], "Did you mean 'mean'?"),
        (["train", "maze", "--method.control-variate", "men"], "Did you mean 'mean'?"),
        (["train", "maze-small", "--decoding.order", "unifrom"], "Did you mean 'uniform'?"),
        (["train", "maze-small", "--resume"], "no earlier run of 'maze-small' under runs/ to resume"),
        (["train", "maze-small", "--dry-run", "--out", "/dev/null"], "no folder can be made at /dev/null"),
        (["train", "maze-small", "--dry-run", "--reward.low", "1", "--reward.high", "0"], "must be below"),
        (["train", "maze-small", "--model.width", "64"], "--model.width: the base model has a fixed shape"),
        (["train", "maze-small", "--config", "/"], "/ is a folder: name the YAML file in it"),
        (["eval", "nowhere"], "no run in nowhere. There are no runs here yet."),
        (["train"], "RECIPE"),
    ],
)
def test_a_mistake_ends_with_code_2_and_names_the_remedy(arguments, named, call):
    code, text = call(*arguments)
    assert code == 2
    assert named in text
    assert "Traceback" not in text


@pytest.mark.parametrize("name", ["wd1", "spg", "gdpo", "trace-rl"])
def test_a_method_with_published_quirks_takes_the_preset(name):
    flags = ["--method.preset=published", "--method", name]
    method = with_flags(dtm.recipe("maze-small"), flags, "dtm train maze-small").method
    assert method == configure_method(name, preset="published")


def test_a_method_that_iterates_and_a_budget_do_not_read_the_step_of_the_tilt():
    config = dtm.recipe("maze-small")
    short = replace(config, tilt=replace(config.tilt, final=1.0))
    check_settings(replace(short, method=configure_method("spg")))
    check_settings(replace(short, budget="1m"))
    with pytest.raises(ConfigError, match=r"tilt\.step must lie in"):
        check_settings(short)


def test_a_folder_that_cannot_be_made_is_named(finished, call, tmp_path):
    (tmp_path / "file").write_text("")
    for command in ("export", "eval"):
        flags = ("--out", "file/deeper") if command == "export" else ("--json", "file/deeper/result.json")
        code, text = call(command, str(finished.path), *flags)
        assert code == 2
        assert "no folder can be made at file/deeper" in text


def test_an_unknown_run_names_the_nearest(finished, call):
    code, text = call("eval", str(finished.path) + "-typo")
    assert code == 2
    assert f"Did you mean '{finished.path}'?" in text


def test_a_resume_with_changed_flags_is_refused_with_the_list(finished, call, tmp_path, tiny):
    (tmp_path / "tiny.yaml").write_text(to_yaml(tiny))
    code, text = call(
        *("train", "maze-small", "--config", "tiny.yaml", "--out", str(finished.path), "--resume"),
        *("--tilt.final", "3", "--seed", "5"),
    )
    assert code == 2
    assert "tilt.final: 2.0 → 3.0" in text
    assert "seed: 0 → 5" in text
    assert "has finished with another configuration" in text


# ── runs ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_dry_run_prints_the_plan_and_writes_nothing(call, tmp_path):
    flags = ("--tilt.step", "2.5", "--tilt.final", "5", "--tilt.max-steps", "80")
    code, text = call("train", "maze-small", "--dry-run", *flags, "--out", "here")
    assert code == 0
    assert "final: 5.0" in text
    assert "phases: 2, from a = 0 to A = 5, at most 80 steps each" in text
    assert "approximates the model's law" in text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("spelling", [["--reward", "rewards.py:half"], ["--reward=rewards.py:half"]])
def test_a_reward_is_given_by_its_short_flag(spelling, call, tmp_path):
    (tmp_path / "rewards.py").write_text("def half(prompts, completions):\n    return [0.5] * len(prompts)\n")
    code, text = call("train", "maze-small", "--dry-run", *spelling)
    assert code == 0
    assert "reward: rewards.py:half" in text


def test_a_run_from_the_command_line_is_the_run_from_python(call, tiny, tmp_path, finished):
    quick = replace(tiny, tilt=replace(tiny.tilt, final=1.0))
    (tmp_path / "tiny.yaml").write_text(to_yaml(quick))
    code, text = call("train", "maze-small", "--config", "tiny.yaml")
    assert code in FINISHED
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("maze-small-train-")
    assert f"run: runs/{folder.name}" in text
    run = dtm.Run.open(folder)
    found, expected = (timeless_rows(r.events("step")) for r in (run, finished))
    assert found == expected[:4]
    assert run.summary["finished"] == "reached the final tilt A = 1"


def test_a_finished_run_is_measured(finished, call, tmp_path):
    code, text = call(
        *("eval", str(finished.path), "--prompts", "3", "--completions", "2"), "--base", "--json", "out.json"
    )
    assert code == 0
    assert "best possible" in text
    written = json.loads((tmp_path / "out.json").read_text())
    assert (written["split"], written["prompts"], written["completions"]) == ("test", 3, 2)
    expected = finished.evaluate(replace(finished.config.evaluation, split="test", prompts=3, completions=2))
    assert written["tuned"] == {**expected.measures, "best": expected.best}
    assert written["base"].keys() == written["tuned"].keys()
    assert f"{expected.measures['reward']:.3f}" in text
    assert "is used once" not in text


def test_more_prompts_than_there_are_ask_each_once(finished, call, tmp_path):
    """The same measures as with their exact number, which the result states."""
    counted = ("--completions", "1", "--json", "out.json")
    code, text = call("eval", str(finished.path), "--prompts", "500", *counted)
    assert code == 0
    there = int(re.search(r"the test split has (\d+) prompts, not 500; each is used once", text)[1])
    capped = json.loads((tmp_path / "out.json").read_text())
    assert capped["prompts"] == there < 500
    _, text = call("eval", str(finished.path), "--prompts", str(there), *counted)
    assert "is used once" not in text
    assert json.loads((tmp_path / "out.json").read_text()) == capped


def test_measures_can_be_piped_as_json(finished, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["eval", str(finished.path), "--prompts", "2", "--completions", "1", "--json", "-"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["prompts"] == 2
    assert "held out" in printed.err
    assert not Path("-").exists()


def test_help_is_printed_where_letters_are_missing(monkeypatch):
    raw = io.BytesIO()
    with io.TextIOWrapper(raw, encoding="ascii") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        assert main(["--help"]) == 0
        stream.flush()
        assert b"?_0" in raw.getvalue()  # π_0


def test_a_negative_seed_is_refused(finished, call):
    for command in (("train", "maze-small", "--dry-run"), ("sample", str(finished.path))):
        code, text = call(*command, "--seed", "-1")
        assert code == 2
        assert "must not be negative, got -1" in text


def test_completions_of_a_finished_run_are_shown(finished, capsys):
    assert main(["sample", str(finished.path), "--prompts", "3", "--completions", "2", "--seed", "4"]) == 0
    first = capsys.readouterr().out
    assert first.count("\nreward ") == 6
    assert first.count("S") >= 6
    main(["sample", str(finished.path), "--prompts", "3", "--completions", "2", "--seed", "4"])
    assert capsys.readouterr().out == first
    main(["sample", str(finished.path), "--prompts", "3", "--completions", "2", "--seed", "5"])
    assert capsys.readouterr().out != first


def test_a_run_without_a_model_says_how_to_finish_it(tiny, call, tmp_path):
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "config.yaml").write_text(to_yaml(tiny))
    code, text = call("sample", "half")
    assert code == 2
    assert "half has not finished: it has no model" in text
    assert "--resume --out half" in text


def test_a_command_to_copy_quotes_a_path_with_spaces(tiny, call, tmp_path):
    (tmp_path / "one half").mkdir()
    (tmp_path / "one half" / "config.yaml").write_text(to_yaml(tiny))
    assert "--resume --out 'one half'" in call("sample", "one half")[1]


def test_a_run_made_from_a_path_names_the_call_that_opens_it(finished):
    with pytest.raises(ConfigError, match=r"dtm\.Run\.open\('runs/first'\)"):
        dtm.Run("runs/first")


def test_a_warning_is_a_sentence_without_its_line_of_code(finished, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(finished.path, folder)
    (folder / "summary.json").unlink()
    newest = max((folder / "checkpoints").glob("step-*"))
    (newest / "student.safetensors").write_bytes(b"cut short")
    flags = ["--config", str(folder / "config.yaml"), "--resume", "--out", str(folder)]
    command = [sys.executable, "-m", "dtm", "train", "maze-small", *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in FINISHED, done.stderr
    assert f"dtm: checkpoint {newest} is damaged" in done.stderr
    assert "warnings.warn" not in done.stderr
