"""The files of examples/extending work, and docs/extending.md shows them as they are."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import dtm
from dtm.cli import main
from dtm.config import IterateConfig
from dtm.config.serialise import to_yaml
from dtm.engine import Decoder
from dtm.errors import ConfigError
from dtm.recipes import RECIPES
from ending import FINISHED

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "examples" / "extending"
METHOD = "examples/extending/my_method.py:MyMethod"
PAGE = (ROOT / "docs" / "extending.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch):
    """Commands name the files as the page does: from the root of the repository."""
    monkeypatch.chdir(ROOT)


@pytest.fixture
def small(tiny, tmp_path) -> list[str]:
    """`maze-small` at the size of a test, as flags."""
    path = tmp_path / "small.yaml"
    path.write_text(to_yaml(tiny), encoding="utf-8")
    return ["--config", str(path), "--device", "cpu"]


@pytest.fixture
def parity() -> list[str]:
    """Flags that make any recipe small enough for the task in my_task.py."""
    sizes = {
        **{"replay.prompts": 8, "replay.completions": 4, "optimizer.batch": 16},
        **{"evaluation.prompts": 8, "evaluation.completions": 2, "checkpoint.every": 1},
    }
    flags = [text for name, value in sizes.items() for text in (f"--{name}", str(value))]
    return ["--task", "examples/extending/my_task.py:Parity", "--device", "cpu", *flags]


def load(name):
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # as `import my_method` would
    spec.loader.exec_module(module)
    return module


# ── the page ──────────────────────────────────────────────────────────────────────────────────────


def test_the_page_shows_every_file_verbatim():
    shown = {}
    for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL):
        found = re.match(r"# (examples/extending/\w+\.py)\n", block)
        if found:
            shown[found[1]] = block
    files = {
        f"examples/extending/{path.name}": path.read_text(encoding="utf-8") for path in FOLDER.glob("*.py")
    }
    assert shown == files


# ── the method ────────────────────────────────────────────────────────────────────────────────────


def test_a_method_of_one_file_trains_resumes_and_is_exported(small, tmp_path, capsys):
    out, flags = tmp_path / "run", [*small, "--method", METHOD, "--method.strength", "2"]
    assert main(["train", "maze-small", *flags, "--iterate.iterations", "3", "--out", str(out)]) in FINISHED
    run = dtm.Run.open(out)
    assert run.config.method.name == METHOD
    assert run.config.method.strength == 2
    assert len(run.events("phase")) == 3
    assert all("bound" in row for row in run.events("step"))
    assert main(["sample", str(out)]) == 0
    assert main(["export", str(out), "--out", str(tmp_path / "exported")]) == 0
    assert "strength" in (tmp_path / "exported" / "README.md").read_text(encoding="utf-8")
    assert (out / "report.html").is_file()


def test_a_stopped_run_of_ones_own_method_ends_like_one_that_was_not_stopped(tiny, tmp_path):
    own = load("my_method")
    config = replace(tiny, device="cpu", iterate=IterateConfig(iterations=4))
    method = own.MyMethod(own.MyConfig(strength=2.0))

    def stop(event):
        if event.kind == "step" and event.step == 2:
            raise KeyboardInterrupt

    whole = dtm.train(config, method=method, out=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        dtm.train(config, method=method, out=tmp_path / "stopped", callbacks=[stop])
    again = dtm.train(config, method=method, out=tmp_path / "stopped", resume=True)
    expected, found = whole.model.state_dict(), again.model.state_dict()
    assert all(torch.equal(expected[name], found[name]) for name in expected)


def test_the_methods_help_shows_its_own_fields(capsys):
    assert main(["train", "maze-small", "--method", METHOD, "--help", "method"]) == 0
    text = capsys.readouterr().out
    assert "--method.strength" in text
    assert "--method.guard" not in text


@pytest.mark.slow
def test_ones_own_method_is_compared_with_others(tiny, tmp_path, monkeypatch):
    monkeypatch.setitem(RECIPES, "maze-small", lambda: replace(tiny, device="cpu"))
    out = tmp_path / "compared"
    names = ["--methods", f"c-dtm,{METHOD}", "--set", "MyMethod.strength=2"]
    assert (
        main(["compare", "maze-small", *names, "--seeds", "1", "--budget", "4e3tokens", "--out", str(out)])
        == 0
    )
    found = json.loads((out / "compare.json").read_text(encoding="utf-8"))
    assert "MyMethod" in json.dumps(found)
    assert dtm.Run.open(out / "MyMethod-0").config.method.strength == 2


# ── task and model ────────────────────────────────────────────────────────────────────────────────


def test_task_and_model_of_ones_own_train_from_the_command_line(parity, tmp_path, capsys):
    out = tmp_path / "run"
    flags = [*parity, "--model.base", "examples/extending/my_model.py:build", "--tilt.max-steps", "2"]
    assert main(["train", "maze-small", *flags, "--out", str(out)]) in FINISHED
    assert main(["eval", str(out), "--base", "--prompts", "4", "--completions", "2"]) == 0
    assert main(["sample", str(out)]) == 0
    assert "parity " in capsys.readouterr().out
    assert dtm.Run.open(out).summary["best"] == 1


SCRIPT = """
import sys
from dataclasses import replace
from my_method import MyConfig, MyMethod
from my_model import build
from my_task import Parity
import dtm

class Louder(MyMethod):
    pass

class Named(Parity):
    name = "named in a script"

if __name__ == "__main__":
    config = dtm.recipe("maze-small")
    config = replace(
        config,
        device="cpu",
        iterate=replace(config.iterate, iterations=1),
        replay=replace(config.replay, completions=4),
        optimizer=replace(config.optimizer, batch=8),
        evaluation=replace(config.evaluation, prompts=4, completions=2),
    )
    dtm.train(config, method=Louder(MyConfig(strength=2.0)), task=Named(), model=build(), out=sys.argv[1])
"""


def test_objects_of_a_script_are_found_again_by_other_commands(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(SCRIPT, encoding="utf-8")
    paths = [str(FOLDER), str(ROOT / "src")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "mine.py", "run"]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(FOLDER))
    config = dtm.Run.open("run").config
    assert config.method.name == "mine.py:Louder"
    assert config.method.strength == 2
    assert config.task.kind == "mine.py:Named"


def test_a_class_inside_a_function_is_refused_before_training(tiny, tmp_path):
    class Hidden(load("my_method").MyMethod):
        pass

    with pytest.raises(ConfigError, match="defined inside a function"):
        dtm.train(tiny, method=Hidden(), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_the_task_pretrains_a_transformer_and_tunes_it(parity, tmp_path, capsys):
    base, out = tmp_path / "base", tmp_path / "run"
    shape = ["--model.width", "16", "--model.layers", "1", "--model.heads", "2", "--model.ffn", "16"]
    steps = ["--pretrain.steps", "30", "--pretrain.batch", "64"]
    assert main(["pretrain", "maze-small", *parity, *shape, *steps, "--out", str(base)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert f"dtm train maze-small --task {parity[1]} --model.base" in printed
    flags = ["--model.base", str(base), "--tilt.max-steps", "2", "--out", str(out)]
    assert main(["train", "maze-small", *parity, *flags]) in FINISHED
    assert dtm.Run.open(out).is_finished


def test_objects_given_to_train_leave_a_folder_with_report_and_resume(tiny, tmp_path):
    method, task, model = load("my_method"), load("my_task"), load("my_model")
    config = replace(
        tiny, device="cpu", iterate=IterateConfig(iterations=2), model=replace(tiny.model, base=None)
    )
    given = {"method": method.MyMethod(), "task": task.Parity(), "model": model.build()}
    run = dtm.train(config, **given, out=tmp_path / "run")
    assert run.is_finished
    assert 0 <= run.summary["tuned"]["reward"] <= 1
    assert "held-out reward" in run.folder.page.read_text("utf-8")
    again = dtm.train(config, **given, out=tmp_path / "run", resume=True)
    assert again.summary == run.summary


def test_parity_can_be_learnt(tmp_path):
    """The reward of the base is that of a guess, and tuning raises it."""
    task, model = load("my_task"), load("my_model")
    config = dtm.recipe("maze-small")
    config = replace(
        config,
        device="cpu",
        model=replace(config.model, base=None),
        decoding=replace(config.decoding, block=None, order="uniform", certainty=None),
        method=replace(config.method, after_end=True),
        tilt=replace(config.tilt, step=3.0, final=6.0, max_steps=100),
        replay=replace(config.replay, prompts=64, completions=8, refresh_every=30),
        optimizer=replace(config.optimizer, lr=3e-3, batch=128),
        evaluation=replace(config.evaluation, prompts=64, completions=8),
    )
    run = dtm.train(config, task=task.Parity(), model=model.build(), out=tmp_path / "run")
    assert run.summary["tuned"]["reward"] > run.summary["base"]["reward"] + 0.2


def test_rows_of_text_and_a_reward_train_a_language_model(write_talking, tmp_path):
    pytest.importorskip("transformers")
    out, base = tmp_path / "run", write_talking("llada")
    task = ["--task", "examples/extending/my_text_task.py:Sums", "--task.largest", "4", "--task.length", "8"]
    small = ["--adapter.rank", "2", "--replay.prompts", "2", "--replay.completions", "2", "--tilt.step", "1"]
    steps = ["--tilt.final", "1", "--tilt.max-steps", "1", "--optimizer.batch", "2", "--model.no-nf4"]
    size = [
        "--evaluation.prompts",
        "2",
        "--evaluation.completions",
        "1",
        "--decoding.block",
        "8",
        "--device",
        "cpu",
    ]
    flags = ["--model.base", str(base), *task, *small, *steps, *size, "--out", str(out)]
    assert main(["train", "llada-custom", *flags]) in FINISHED
    run = dtm.Run.open(out)
    assert run.config.task.largest == 4
    assert set(run.summary["tuned"]) >= {"reward", "digits"}


# ── functions ─────────────────────────────────────────────────────────────────────────────────────


def test_reward_and_control_variate_are_named_by_file(small, tmp_path):
    out = tmp_path / "run"
    reward = ["--reward", "examples/extending/my_reward.py:reward", "--reward.low", "0", "--reward.high", "1"]
    control = ["--method.control-variate", "examples/extending/my_control.py:fading"]
    assert main(["train", "maze-small", *small, *reward, *control, "--out", str(out)]) in FINISHED
    run = dtm.Run.open(out)
    assert 0 <= run.summary["tuned"]["reward"] <= 1
    assert run.config.method.control_variate == control[1]


def test_an_order_decodes_and_is_an_order(tiny):
    from dtm.engine.orders import Order

    module = load("my_order")
    assert isinstance(module.decoder, Decoder)
    assert isinstance(module.LeastCertain(), Order)
    log_pi = torch.tensor([[0.5, 0.5], [0.9, 0.1]]).log()
    score = module.LeastCertain().score(log_pi, torch.zeros(2).long(), torch.zeros(2))
    assert score[0] > score[1]


def test_a_callback_sees_the_evaluations(tiny, tmp_path, capsys):
    dtm.train(tiny, out=tmp_path / "run", callbacks=[load("my_callback").print_reward])
    assert capsys.readouterr().out.count("held-out reward") == 3
