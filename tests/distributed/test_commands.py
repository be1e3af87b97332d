"""Pretraining, adaptation and evaluation in two processes are those of one; a launch ends as a whole."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import dtm
import dtm.cli
from dtm.api import measure
from dtm.config import DistributedConfig, RunConfig
from dtm.config.adapt import AdaptConfig, CorpusConfig
from dtm.config.serialise import to_yaml
from dtm.distributed import current, report_once
from dtm.distributed.launch import launch
from dtm.engine import Decoder
from dtm.errors import ConfigError
from dtm.evaluation.complete import complete
from dtm.loop.assemble import assemble
from dtm.loop.audit import audit
from dtm.random import stream
from ending import FINISHED
from ranks import each

ONLY = {"general": 0.0, "countdown": 0.0, "arithmetic": 0.0, "sudoku": 0.0, "sudoku_lines": 0.0, "gsm8k": 0.0}
PROMPTS = [[1, 2, 3], [4], [5, 6, 7], [8, 9, 10], [11]]


def commands(tiny: RunConfig, out: Path) -> dict[str, Any]:
    """What each command computes and writes."""
    assembly = assemble(tiny)
    base, collector = assembly.base, assembly.collector()
    collector.engine.load(base)
    asked = assembly.task.prompts("train", 5, stream(0, "asked"))
    fast = Decoder(certainty=0.6)
    shortcut = assembly.engine(fast)
    shortcut.load(base)
    pretrained = dtm.pretrain(
        replace(
            tiny,
            model=replace(tiny.model, base=None),
            pretrain=replace(tiny.pretrain, steps=3, batch=5, held_out=7),
            distributed=DistributedConfig(row_order=True),
        ),
        out=out,
    )
    return {
        "pretrained": [value.clone() for value in pretrained.model.state_dict().values()],
        "pretrain": pretrained.summary,
        "audit": audit(replace(collector, engine=shortcut), collector.engine, asked, 4, seed=1),
        "evaluation": measure(assembly, base).measures,
        "completed": complete(base, PROMPTS, 4, Decoder(), 2, torch.device("cpu"), group=current()),
        "files": sorted(str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()),
    }


def test_pretrain_evaluate_and_audit_are_those_of_one_process(tiny, tmp_path):
    (one,) = each(1, commands, tiny, tmp_path / "one")
    for two in each(2, commands, tiny, tmp_path / "two"):
        assert all(map(torch.equal, two["pretrained"], one["pretrained"]))  # in row order: bit for bit
        assert two["pretrain"] == pytest.approx(one["pretrain"], rel=1e-5)
        assert torch.equal(two["completed"], one["completed"])
        for name in ("evaluation", "audit", "files"):
            assert two[name] == one[name], name


def adapted(source: AdaptConfig, out: Path) -> dict[str, Any]:
    folder = dtm.adapt(source, out=out)
    weights = load_file(folder.model / "model.safetensors")
    return {"bound": json.loads(folder.summary.read_text())["held_out_bound"], "weights": weights}


@pytest.fixture
def source(write_source, tmp_path) -> AdaptConfig:
    pytest.importorskip("transformers")
    rows = [{"prompt": "the " * n, "completion": "sum " * (9 - n)} for n in range(1, 9)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    start, data = AdaptConfig(), str(tmp_path / "rows.jsonl")
    return replace(
        start,
        recipe="source",
        source=str(write_source("llama")),
        device="cpu",
        precision="float32",
        compile="off",
        block=8,
        measured=0,
        corpus=CorpusConfig(**ONLY, own=1.0, workers=0, data=data, lengths=(48, 64, 96)),
        pretrain=replace(start.pretrain, steps=2, batch=4, held_out=4, lr=1e-3),
    )


@pytest.mark.slow
def test_adapt_is_that_of_one_process(source, tmp_path):
    (one,) = each(1, adapted, source, tmp_path / "one")
    for two in each(2, adapted, source, tmp_path / "two"):
        assert two["bound"] == pytest.approx(one["bound"], rel=1e-5)
        for name, weight in one["weights"].items():
            torch.testing.assert_close(two["weights"][name], weight, atol=1e-4, rtol=0)


def test_only_the_first_process_prints_and_a_launch_returns_the_code_of_a_failure(capfd):
    assert launch(["recipes"], 2, {}) == 0
    listed = capfd.readouterr().out
    assert listed.count("maze-small ") == 1
    with pytest.raises(ConfigError, match="--processes must be at least 1"):
        launch(["recipes"], 0, {})


ALIKE = {
    "a flag": (["--optimizer.lrr", "1"], "Unrecognized options: --optimizer.lrr"),
    "a parser's flag": (["--config"], "expected one argument"),
    "a value": (["--optimizer.lr", "-1"], "optimizer.lr must be"),
    "the base": (["--model.base", "nowhere"], "nowhere"),
    "gradients": (["--optimizer.lr", "1e30", "--optimizer.clip-norm", "1e30"], "finite"),
}
"""Errors that all processes meet: before and after they have joined their group."""


@pytest.mark.parametrize("name", ALIKE)
def test_an_error_that_all_processes_meet_is_printed_once(tiny, tmp_path, capfd, name):
    flags, told = ALIKE[name]
    (tmp_path / "tiny.yaml").write_text(to_yaml(tiny))
    start = ["train", "maze-small", "--config", str(tmp_path / "tiny.yaml"), "--out", str(tmp_path / "run")]
    assert launch([*start, *flags], 2, {}) == 2
    printed = capfd.readouterr()
    assert (printed.out + printed.err).count(told) == 1, printed


def test_an_error_of_one_process_alone_is_told_with_its_number(monkeypatch, capfd):
    code = (
        "import os, sys\nfrom datetime import timedelta\nfrom dtm.cli import main\n"
        "from dtm.distributed import reports\nreports.PATIENCE = timedelta(seconds=0.2)\n"
        "sys.exit(main(['recipes', 'show', 'unknown'] if os.environ['RANK'] == '1' else ['recipes']))"
    )
    monkeypatch.setattr("dtm.distributed.launch.COMMAND", ["-c", code])
    assert launch([], 2, {}) == 2
    assert "dtm: process 1: " in capfd.readouterr().err


@pytest.mark.parametrize("first", ["another problem", None])
def test_a_message_is_told_unless_the_first_process_tells_the_same(first):
    found = each(3, reported, first)
    own = ["process 1: own", ""] if first is None else ["process 1: own", "process 2: same"]
    assert found == ["same" if first is None else first, *own]


def reported(first: str | None) -> str:
    """What one process of three tells; the first and the last meet the same, or the first something else."""
    current()
    messages = ["same" if first is None else first, "own", "same"]
    told: list[str] = []
    report_once(messages[current().rank], told.append)
    return "".join(told)


def under_torchrun(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`torchrun --nproc-per-node 2 -m dtm ARGUMENTS`."""
    torchrun = Path(sys.executable).with_name("torchrun")
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
    return subprocess.run(
        [torchrun, "--nproc-per-node", "2", "--master-port", str(port), "-m", "dtm", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.slow
def test_torchrun_trains_the_run_of_one_process_and_prints_an_error_once(tiny, tmp_path):
    config = replace(tiny, distributed=DistributedConfig(row_order=True), device="cpu")
    (tmp_path / "tiny.yaml").write_text(to_yaml(config))
    start = ["train", "maze-small", "--config", str(tmp_path / "tiny.yaml")]
    done = under_torchrun(*start, "--out", str(tmp_path / "two"))
    assert done.stdout.count(str(tmp_path / "two" / "report.html")) == 1, done.stdout + done.stderr
    assert dtm.cli.main([*start, "--out", str(tmp_path / "one")]) in FINISHED
    one, two = (load_file(tmp_path / name / "model" / "model.safetensors") for name in ("one", "two"))
    assert all(torch.equal(one[name], two[name]) for name in one)
    for flags, told in (ALIKE["a flag"], ALIKE["the base"], ALIKE["gradients"]):
        failed = under_torchrun(*start, "--out", str(tmp_path / "failed"), *flags)
        assert failed.returncode != 0
        assert failed.stderr.count(told) == 1, failed.stderr


def test_a_killed_process_is_told_and_ends_the_launch(monkeypatch, capfd):
    """The other one would wait for a minute, and then say so."""
    waits = "time.sleep(60); print('waited')"
    code = f"import os, time\nif os.environ['RANK'] == '1': os.kill(os.getpid(), 9)\n{waits}"
    monkeypatch.setattr("dtm.distributed.launch.GRACE", 0.1)
    monkeypatch.setattr("dtm.distributed.launch.COMMAND", ["-c", code])
    assert launch([], 2, {}) == 128 + 9
    told = capfd.readouterr()
    assert "dtm: process 1 was ended by SIGKILL" in told.err
    assert "waited" not in told.out


def test_commands_that_start_runs_refuse_torchrun(monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    assert dtm.cli.main(["sweep", "maze-small", "--set", "seed=1 2"]) == 2
    assert "Run instead: dtm sweep maze-small --set 'seed=1 2' --processes 2" in capsys.readouterr().err
    assert dtm.cli.main(["train", "maze-small", "--processes", "2"]) == 2
    assert "leave out" in capsys.readouterr().err
