"""The Python code of the pages is run in page order, at the size of a test, and so are the cheap commands."""

from __future__ import annotations

import importlib
import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

import dtm
from dtm.cli import main
from dtm.config import EvaluationConfig, OptimizerConfig, ReplayConfig, TiltConfig
from test_docs import CURRENT, ROOT, commands

FENCE = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
ELSEWHERE = {
    "extending.md": "test_extending.py runs the files that the page shows",
    "own-loop.md": "test_docs.py runs the page's loop and checks that the reward rises",
}
"""Pages whose code is run by another test."""
SKIPPED = {
    'model = dtm.load_model("path/to/SDAR-8B-Chat"': "needs a model of the hub",
    "import torch\nimport dtm\n\nmodel = dtm.load_model(": "needs a model of the hub and a GPU",
}
"""Beginnings of code that cannot be run here, and why."""
PYTHON = [page for page in CURRENT if FENCE.search(page.read_text("utf-8")) and page.name not in ELSEWHERE]
SMALL: dict[str, Any] = {
    "tilt": TiltConfig(step=1.0, final=1.0, max_steps=2),
    "replay": ReplayConfig(prompts=8, completions=4),
    "optimizer": OptimizerConfig(batch=8, micro_batch=4),
    "evaluation": EvaluationConfig(prompts=4, completions=1),
}


@pytest.fixture
def llada(write_talking) -> Path:
    return write_talking("llada")


@pytest.fixture
def stand_ins(finished, write_source, llada) -> dict[str, str]:
    """Texts of the pages that name the reader's files or a long run, and code that runs here."""
    return {
        '"maze-small"': "TINY",
        '"smollm2"': repr(str(write_source("llama"))),
        'base="runs/base"': f"base={str(llada)!r}",
        "tilt=replace(start.tilt, final=10.0))": "**SMALL, device='cpu')",
        'ModelFiles.find("runs/my-run")': f"ModelFiles.find({str(llada)!r})",
        "length=256": "length=32, limit=2",
        'Run.open("runs/my-run")': f"Run.open({str(finished.path)!r})",
        "n=16": "n=2",
    }


@pytest.mark.parametrize("page", PYTHON, ids=lambda page: page.name)
def test_the_code_of_a_page_runs_in_page_order(page, stand_ins, llada, tiny, tmp_path, monkeypatch, request):
    if page.name == "evaluation.md":  # skipped without the published items
        stand_ins['Path("data")'] = f"Path({str(request.getfixturevalue('shared_data'))!r})"
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_rewards", raising=False)  # that of another test
    request.addfinalizer(lambda: sys.modules.pop("my_rewards", None))
    names: dict[str, Any] = {"TINY": tiny, "SMALL": SMALL, "model": dtm.load_model(llada)}
    names |= {"folder": tmp_path / "folder", "merged": tmp_path / "merged", "base_folder": llada}
    for code in FENCE.findall(page.read_text("utf-8")):
        if any(code.startswith(beginning) for beginning in SKIPPED):
            continue
        for text, here in stand_ins.items():
            code = code.replace(text, here)
        if "MIDDLE" in code:
            (tmp_path / "my_rewards.py").write_text(code)
            importlib.invalidate_caches()
        exec(compile(code, page.name, "exec"), names)


def test_the_list_of_skipped_code_has_no_entry_too_many():
    codes = [code for page in PYTHON for code in FENCE.findall(page.read_text("utf-8"))]
    for beginning in SKIPPED:
        assert any(code.startswith(beginning) for code in codes), beginning
    for name in ELSEWHERE:
        assert FENCE.search((ROOT / "docs" / name).read_text("utf-8"))


CHEAP = re.compile(
    r"dtm (train [a-z]\S+ .*--dry-run.*|\w+ [a-z]\S+ --help( \w+)?|models|results check|verify \w+"
    r"|recipes( show [a-z]\S+)?)"
)
LINES = sorted(
    {
        line
        for page in CURRENT
        for line in [
            *commands(page.read_text("utf-8")),
            *re.findall(r"`(dtm [^`]+)`", page.read_text("utf-8")),
        ]
        if CHEAP.fullmatch(line) and not re.search(r"\b(SECTION|examples/)", line)
    }
)


def test_there_are_cheap_commands_of_several_kinds():
    assert {line.split()[1] for line in LINES} >= {"models", "recipes", "results", "train", "verify"}


@pytest.mark.parametrize("line", LINES)
def test_a_cheap_command_of_the_pages_succeeds(line, llada, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(ROOT if line == "dtm results check" else tmp_path)
    rows = [{"prompt": f"Name a prime above {n}.", "answer": "101"} for n in range(40)]
    (tmp_path / "rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    (tmp_path / "my_rewards.py").write_text(
        "def reward(prompts, completions, **columns):\n    return [0.0]\n"
    )
    here = {"DIR": str(llada), "runs/base": str(llada), "DATA": "generated"}
    arguments = [here.get(word, word) for word in shlex.split(line)[1:]]
    if "llada-" in line and "--model.base" not in line:
        arguments += ["--model.base", str(llada)]
    if "--dry-run" in line and "maze" not in line:
        arguments += ["--device", "cpu"]
    try:
        code = main(arguments)
    except SystemExit as end:  # of --help
        code = end.code or 0
    assert code == 0, capsys.readouterr().err
