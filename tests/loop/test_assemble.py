"""A command resolves the device, the task and the base once; whatever needs them shares an assembly."""

from __future__ import annotations

from collections import Counter

import pytest

from dtm.cli import main
from dtm.config.serialise import to_yaml
from dtm.loop import assemble, assembly
from dtm.models.placement import Placement
from ending import FINISHED


@pytest.fixture
def calls(monkeypatch) -> Counter[str]:
    """How often each heavy part is made."""
    counts: Counter[str] = Counter()

    def counted(owner, name, made):
        def count(*arguments, **options):
            counts[name] += 1
            return made(*arguments, **options)

        monkeypatch.setattr(owner, name, count)

    counted(assemble, "build_task", assemble.build_task)
    counted(assembly, "load_base", assembly.load_base)
    counted(Placement, "resolve", Placement.resolve)
    return counts


@pytest.fixture
def start(tiny, tmp_path) -> list[str]:
    """`dtm train` of the tiny maze on the CPU."""
    path = tmp_path / "tiny.yaml"
    path.write_text(to_yaml(tiny), encoding="utf-8")
    return ["train", "maze-small", "--config", str(path), "--device", "cpu", "--out", str(tmp_path / "run")]


def test_a_training_run_builds_each_part_once(calls, start, capsys):
    assert main(start) in FINISHED
    assert "on the CPU: about" in capsys.readouterr().out  # the estimate, which needs the same parts
    assert calls == {"resolve": 1, "build_task": 1, "load_base": 1}


def test_a_resumed_run_builds_each_part_once(calls, start, tmp_path):
    assert main([*start, "--tilt.final", "1.0"]) in FINISHED
    (tmp_path / "run" / "summary.json").unlink()
    calls.clear()
    assert main(["train", "maze-small", "--resume", "--out", str(tmp_path / "run")]) in FINISHED
    assert calls == {"resolve": 1, "build_task": 1, "load_base": 1}


def test_a_dry_run_builds_each_part_once(calls, start):
    """The base too, if it is small enough to be timed."""
    assert main([*start, "--dry-run"]) == 0
    assert calls["load_base"] <= 1
    assert (calls["resolve"], calls["build_task"]) == (1, 1)


@pytest.mark.parametrize("base", [False, True])
@pytest.mark.parametrize("command", ["eval", "sample"])
def test_a_finished_run_is_read_with_one_assembly(command, base, calls, finished):
    flags = ["--prompts", "2", "--completions", "1", *(["--base"] if base else [])]
    assert main([command, str(finished.path), *flags]) == 0
    assert calls == {"resolve": 1, "build_task": 1, **({"load_base": 1} if base else {})}
