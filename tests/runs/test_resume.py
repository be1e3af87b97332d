"""A run that is stopped anywhere and resumed equals the run that was not, bit for bit."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
import subprocess
import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import dtm
from dtm.cli import main
from dtm.comparison.audit import read_fingerprint
from dtm.errors import CheckpointError, ConfigError, DtmWarning, StorageError
from dtm.loop.assemble import assemble
from dtm.runs.checkpoint import load_latest
from dtm.runs.environment import commit
from dtm.runs.events import JsonLines, read_events
from dtm.runs.folder import RunFolder, require_new
from dtm.runs.interrupts import Interrupted
from dtm.runs.resume import find_run, require_same_config
from dtm.tasks.maze import MazeTask
from ending import FINISHED
from stopping import StopAt
from timeless import timeless, timeless_rows

SAFE_POINTS = 19
"""Times that a run of `tiny` looks whether it should stop: between steps and between rollout batches."""


def outcome(trainer, folder) -> dict:
    """Everything that two runs can be compared by."""
    rows = {
        kind: timeless_rows(read_events(folder / "metrics.jsonl", kind))
        for kind in ("step", "phase", "evaluation", "rollouts", "stopped")
    }
    tensors = load_latest(folder / "checkpoints").tensors
    progress = timeless(trainer.progress.to_json())
    teacher = trainer.policy.teacher.state_dict()
    return {"rows": rows, "tensors": dict(tensors), "progress": progress, "teacher": teacher}


def assert_equal(found: dict, expected: dict) -> None:
    assert found["progress"] == expected["progress"]
    assert found["rows"] == expected["rows"]
    parts = {**expected["tensors"], "final": expected["teacher"]}
    others = {**found["tensors"], "final": found["teacher"]}
    assert others.keys() == parts.keys()
    for group, tensors in parts.items():
        assert others[group].keys() == tensors.keys()
        for name, value in tensors.items():
            assert torch.equal(others[group][name], value), f"{group}: {name}"


def start(make_trainer, config, folder, point: int | None = None):
    stop = StopAt(point)
    trainer = make_trainer(config, folder / "checkpoints", [JsonLines(folder / "metrics.jsonl")], stop)
    return trainer, stop


@pytest.fixture(scope="module")
def uninterrupted(tiny, tmp_path_factory):
    """`module` scope cannot use `make_trainer`, so the reference is made on first use and kept."""
    kept = {}

    def reference(make_trainer):
        if not kept:
            folder = tmp_path_factory.mktemp("uninterrupted")
            trainer, stop = start(make_trainer, tiny, folder)
            trainer.run()
            assert stop.passed == SAFE_POINTS
            kept.update(outcome(trainer, folder))
        return kept

    return reference


@pytest.mark.parametrize(
    "point",
    [pytest.param(point, marks=[pytest.mark.slow] * (point % 3 > 0)) for point in range(SAFE_POINTS)],
)
def test_a_run_stopped_at_any_safe_point_ends_as_if_it_had_not_been(
    point, tiny, make_trainer, uninterrupted, tmp_path
):
    trainer, _ = start(make_trainer, tiny, tmp_path, point)
    with pytest.raises(Interrupted):
        trainer.run()
    resumed, _ = start(make_trainer, tiny, tmp_path)
    resumed.resume(tmp_path / "checkpoints")
    resumed.run()
    assert_equal(outcome(resumed, tmp_path), uninterrupted(make_trainer))


def test_a_run_resumed_from_an_older_checkpoint_repeats_its_steps(
    tiny, make_trainer, uninterrupted, tmp_path
):
    trainer, _ = start(make_trainer, tiny, tmp_path)
    for _ in range(7):
        trainer._advance()
        if trainer.progress.step in (4, 6):
            trainer.save()
    newest = tmp_path / "checkpoints" / "step-00000006-phase-001" / "student.safetensors"
    newest.write_bytes(newest.read_bytes()[:-1])
    resumed, _ = start(make_trainer, tiny, tmp_path)
    with pytest.warns(UserWarning, match="damaged"):
        resumed.resume(tmp_path / "checkpoints")
    assert resumed.progress.step == 4
    resumed.run()
    expected = uninterrupted(make_trainer)
    assert torch.equal(resumed.policy.teacher.state_dict()["norm.weight"], expected["teacher"]["norm.weight"])
    steps = read_events(tmp_path / "metrics.jsonl", "step")
    assert [row["step"] for row in steps] == list(range(1, 9))
    assert timeless_rows(steps) == expected["rows"]["step"]


def test_without_an_average_a_resumed_run_is_the_same_too(tiny, make_trainer, tmp_path):
    config = replace(tiny, optimizer=replace(tiny.optimizer, ema=None))
    models = []
    for point in (None, 9):
        folder = tmp_path / str(point)
        folder.mkdir()
        trainer, _ = start(make_trainer, config, folder, point)
        if point is not None:
            with pytest.raises(Interrupted):
                trainer.run()
            trainer, _ = start(make_trainer, config, folder)
            trainer.resume(folder / "checkpoints")
        trainer.run()
        models.append(trainer.policy.teacher.state_dict())
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])


# ── through the public interface ──────────────────────────────────────────────────────────────────


def test_train_is_the_trainer_in_a_folder(finished, make_trainer, uninterrupted):
    expected = uninterrupted(make_trainer)
    model = finished.model.state_dict()
    assert all(torch.equal(model[name], value) for name, value in expected["teacher"].items())
    steps = finished.events("step")
    assert timeless_rows(steps) == expected["rows"]["step"]
    assert finished.summary["steps"] == 8


def test_a_resume_with_another_configuration_is_refused_with_the_list(tiny, finished):
    other = replace(tiny, seed=3, tilt=replace(tiny.tilt, final=5.0))
    with pytest.raises(ConfigError) as caught:
        dtm.train(other, out=finished.path, resume=True)
    assert "seed: 0 → 3" in str(caught.value)
    assert "tilt.final: 2.0 → 5.0" in str(caught.value)
    assert "tilt.step" not in str(caught.value)


@pytest.fixture
def stopped(tiny, tmp_path):
    """A run that was stopped at once, from a base of its own; and its configuration."""
    base = shutil.copytree(tiny.model.base, tmp_path / "base")
    config = replace(tiny, model=replace(tiny.model, base=str(base)))

    def stop(event):
        raise Interrupted

    return dtm.train(config, out=tmp_path / "run", callbacks=[stop]), config


def test_a_resume_from_another_base_is_refused(stopped):
    run, config = stopped
    weights = next(Path(config.model.base).rglob("model.safetensors"))
    save_file({name: 1.3 * value for name, value in load_file(weights).items()}, weights)
    with pytest.raises(ConfigError, match=r"have changed:\n  the base\n    other weights\nRestore them"):
        dtm.train(config, out=run.path, resume=True)


def test_a_resume_with_other_prompts_is_refused(stopped, monkeypatch):
    run, config = stopped
    usual = MazeTask.prompts

    def others(task, split, count, generator):
        return usual(task, split, count + 1, generator).select(range(1, count + 1))

    monkeypatch.setattr(MazeTask, "prompts", others)
    with pytest.raises(
        ConfigError, match=r"other questions or gold answers\n .*\n    other training prompts"
    ):
        dtm.train(config, out=run.path, resume=True)


def test_an_edited_config_file_is_refused_like_a_flag(stopped):
    run, _ = stopped
    text = run.folder.config.read_text()
    run.folder.config.write_text(text.replace("step: 1.0", "step: 0.5").replace("keep: 2", "keep: 3"))
    with pytest.raises(ConfigError, match=r"was edited after the run started:\n  tilt.step: 1.0 → 0.5\n"):
        dtm.train(run.config, out=run.path, resume=True)
    with pytest.raises(ConfigError, match="was edited"):
        find_run("maze-small", "train", run.path)
    run.folder.config.write_text(text.replace("keep: 2", "keep: 3"))
    assert find_run("maze-small", "train", run.path) is not None  # this may be changed


@pytest.mark.parametrize(("recipe", "kind"), [("maze", "train"), ("maze-small", "pretrain")])
def test_a_run_of_another_recipe_or_command_is_refused(recipe, kind, finished):
    with pytest.raises(CheckpointError, match=rf"`dtm train maze-small`, not of `dtm {kind} {recipe}`"):
        find_run(recipe, kind, finished.path, "auto")


def test_auto_resumes_where_there_is_a_run_and_else_starts(stopped, finished, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert find_run("maze-small", "train", tmp_path / "new", "auto") is None
    assert find_run("maze-small", "train", finished.path, "auto") == finished.folder
    assert find_run("maze-small", "train", None, "auto") is None
    shutil.copytree(finished.path, "runs/done")
    assert find_run("maze-small", "train", None, "auto") is None  # a finished run leaves nothing to resume
    shutil.copytree(stopped[0].path, "runs/cut")
    assert find_run("maze-small", "train", None, "auto").path == Path("runs/cut")
    assert dtm.train("maze-small", resume="auto", out=finished.path).summary == finished.summary
    assert main(["train", "maze-small", "--resume", "auto", "--out", str(finished.path)]) in FINISHED
    assert f"run:     {finished.path}" in capsys.readouterr().out


def test_a_relative_base_is_found_from_another_folder(stopped, tmp_path, monkeypatch):
    run, config = stopped
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    relative = replace(config, model=replace(config.model, base="base"))
    assert assemble(relative).run_config.model.base == str(tmp_path / "base")
    require_same_config(run.folder, relative)
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert run.assembly.base_folder == tmp_path / "base"


@pytest.mark.parametrize("content", [b"[]", b"null", b"{", b"\xff\xfe"])
@pytest.mark.parametrize("name", ["summary.json", "fingerprint.json", "environment.json"])
def test_a_damaged_file_is_named_with_a_remedy(name, content, finished, tmp_path):
    folder = RunFolder(tmp_path)
    shutil.copyfile(finished.folder.config, folder.config)
    (tmp_path / name).write_bytes(content)
    reads = {
        "summary.json": lambda: dtm.Run(folder).summary,
        "fingerprint.json": lambda: read_fingerprint(dtm.Run(folder)),
        "environment.json": lambda: find_run("maze-small", "train", tmp_path),
    }
    with pytest.raises(CheckpointError, match=rf"{name} is damaged: .*\. Restore it, or delete it"):
        reads[name]()


@pytest.fixture
def copied(finished, tmp_path) -> RunFolder:
    """A finished run to damage."""
    return RunFolder(Path(shutil.copytree(finished.path, tmp_path / "run")))


COMMANDS = {"report": ["report"], "resume": ["train", "maze-small", "--resume", "--out"]}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("content", ["[]", "{", '{"items": 1}'])
def test_a_damaged_fingerprint_of_a_finished_run_is_named(command, content, copied, capsys):
    copied.fingerprint.write_text(content)
    assert main([*COMMANDS[command], str(copied.path)]) == 2
    assert re.match(r"dtm: \S*fingerprint\.json is damaged: .*or delete it", capsys.readouterr().err)
    copied.fingerprint.unlink()
    assert main([*COMMANDS[command], str(copied.path)]) in FINISHED


@pytest.mark.parametrize("command", COMMANDS)
def test_a_log_that_has_lost_the_steps_of_a_finished_run_is_told(command, copied):
    call = [*COMMANDS[command], str(copied.path)]
    rows = copied.metrics.read_text().splitlines(keepends=True)
    others = "".join(row for row in rows if '"event": "step"' not in row)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert main(call) in FINISHED
    for content in ("", others, None):
        copied.metrics.unlink() if content is None else copied.metrics.write_text(content)
        with pytest.warns(DtmWarning, match=r"metrics\.jsonl has lost the rows of 8 steps, which summary"):
            assert main(call) in FINISHED


@pytest.mark.parametrize("content", ["{}", '{"recipe": "maze-small", "seed": 0, "finished": 1, "base": []}'])
def test_a_summary_without_its_measures_is_named_with_a_remedy(content, finished, tmp_path, capsys):
    shutil.copytree(finished.path, tmp_path / "run")
    (tmp_path / "run" / "summary.json").write_text(content)
    assert main(["train", "maze-small", "--resume", "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert re.match(r"dtm: \S*summary\.json is damaged: .*delete it and continue the run", said), said


@pytest.mark.parametrize(("edit", "told"), [("{}", "it has no recipe"), ("task:\n  size: 9\n", "vocab_size")])
def test_a_model_is_not_asked_in_the_words_of_another_task(edit, told, finished, tmp_path, capsys):
    shutil.copytree(finished.path, tmp_path / "run")
    config = tmp_path / "run" / "config.yaml"
    text = config.read_text()
    config.write_text(edit if edit == "{}" else text.replace("size: 7", "size: 9"))
    for command in ("sample", "eval"):
        assert main([command, str(tmp_path / "run")]) == 2
        assert told in capsys.readouterr().err


def test_a_folder_with_other_files_is_not_taken_for_a_run(tiny, tmp_path):
    (tmp_path / ".lock").touch()  # of a start that was killed
    require_new(tmp_path)
    shutil.copyfile(Path(tiny.model.base) / "config.json", tmp_path / "config.json")
    with pytest.raises(CheckpointError, match="exists and holds no run: it is not empty"):
        dtm.train(tiny, out=tmp_path)
    assert not (tmp_path / "config.yaml").exists()


def test_a_log_that_cannot_be_written_stops_the_run_at_a_safe_point(
    tiny, make_trainer, uninterrupted, tmp_path
):
    """The state is saved, and the run ends as an uninterrupted one."""

    def full(event):
        if event.kind == "phase":
            raise StorageError("cannot write metrics.jsonl: No space left on device")

    trainer = make_trainer(tiny, tmp_path / "checkpoints", [full])
    with pytest.raises(StorageError, match="No space left"):
        trainer.run()
    assert load_latest(tmp_path / "checkpoints").state["phase"] == 1
    resumed, _ = start(make_trainer, tiny, tmp_path)
    with pytest.warns(UserWarning, match="has lost the rows of 4 steps"):
        resumed.resume(tmp_path / "checkpoints")
    resumed.run()
    expected = uninterrupted(make_trainer)
    found = outcome(resumed, tmp_path)
    assert_equal(found | {"rows": None}, expected | {"rows": None})


def test_a_failed_write_says_how_to_continue(tiny, tmp_path, monkeypatch):
    def full(*_arguments, **_options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("dtm.runs.checkpoint.save_file", full)
    said = r"cannot write .*step-00000002: No space left on device\nThe run has no checkpoint yet; .*--resume"
    with pytest.raises(StorageError, match=said):
        dtm.train(tiny, out=tmp_path / "run")
    assert not list((tmp_path / "run" / "checkpoints").iterdir())


def test_what_may_be_changed_is_written_down(stopped):
    run, config = stopped
    reward = replace(config.reward, on_error="skip", timeout=5.0)
    changed = replace(config, reward=reward, checkpoint=replace(config.checkpoint, keep=1))
    run = dtm.train(changed, out=run.path, resume=True)
    assert run.is_finished
    assert run.config == changed
    written = json.loads(run.folder.fingerprint.read_text())
    assert written["settings"]["reward.on_error"] == "skip"
    assert len(list(run.folder.checkpoints.iterdir())) == 1


def test_a_finished_run_is_not_resumed_but_returned(tiny, finished):
    before = finished.folder.metrics.read_text()
    assert dtm.train(tiny, out=finished.path, resume=True).summary == finished.summary
    assert finished.folder.metrics.read_text() == before


def test_the_latest_run_is_found_whatever_its_folder_is_called(stopped, finished, tmp_path, monkeypatch):
    """The newest that has not finished, or else the newest; files of others do not disturb."""
    monkeypatch.chdir(tmp_path)
    recipe = finished.config.recipe
    for age, (name, run) in enumerate({"old": finished, "done": finished, "cut": stopped[0]}.items()):
        shutil.copytree(run.path, tmp_path / "runs" / name)
        os.utime(tmp_path / "runs" / name / "config.yaml", (age, age))
    os.utime("runs/done/config.yaml", (9, 9))
    Path("runs/foreign").mkdir()
    Path("runs/foreign/config.yaml").write_text("a: [")
    assert RunFolder.latest(recipe, "train").path == Path("runs/cut")
    shutil.rmtree("runs/cut")
    assert RunFolder.latest(recipe, "train").path == Path("runs/done")
    with pytest.raises(CheckpointError, match="no earlier run of 'maze'"):
        RunFolder.latest("maze", "train")
    with pytest.raises(CheckpointError, match="no earlier run"):
        RunFolder.latest(recipe, "pretrain")
    RunFolder.create(finished.config, "pretrain", "runs/base")
    assert RunFolder.latest(recipe, "pretrain").path == Path("runs/base")


def test_a_folder_that_holds_a_run_is_not_overwritten(tiny, finished):
    before = json.loads(finished.folder.summary.read_text())
    with pytest.raises(CheckpointError, match=r"already holds a run\. Continue it with --resume"):
        dtm.train(tiny, out=finished.path)
    assert finished.summary == before


def test_a_run_killed_before_its_first_checkpoint_can_be_started_again(tiny, tmp_path):
    """Either with --resume or without: whatever the message says must work."""

    class Killed(BaseException):
        pass

    def kill(event):
        raise Killed

    with pytest.raises(Killed):
        dtm.train(tiny, out=tmp_path / "run", callbacks=[kill])
    try:
        run = dtm.train(tiny, out=tmp_path / "run", resume=True)
    except CheckpointError:  # "start the run again without --resume"
        run = dtm.train(tiny, out=tmp_path / "run")
    assert run.is_finished


def test_a_configuration_that_cannot_run_leaves_its_folder_free(tiny, tmp_path):
    wrong = replace(tiny, method=replace(tiny.method, control_variate="adaptiv"))
    with pytest.raises(ConfigError, match="Did you mean 'adaptive'"):
        dtm.train(wrong, out=tmp_path / "run")
    quick = replace(tiny, tilt=replace(tiny.tilt, final=1.0, max_steps=1))
    assert dtm.train(quick, out=tmp_path / "run").is_finished


def test_the_commit_is_marked_where_the_source_was_edited_and_not_where_results_were_written(tmp_path):
    def git(*arguments: str) -> str:
        named = ("-c", "user.name=a", "-c", "user.email=a@b")
        return subprocess.run(
            ["git", *named, *arguments], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout.strip()

    source, result = tmp_path / "src" / "code.py", tmp_path / "results" / "table.json"
    for path in (source, result):
        path.parent.mkdir()
        path.write_text("1")
    assert commit(source) is None
    git("init", "--quiet")
    git("add", ".")
    git("commit", "--quiet", "--message", "first")
    name = git("rev-parse", "--short=12", "HEAD")
    result.write_text("2")
    assert commit(source) == name
    source.write_text("2")
    assert commit(source) == f"{name}-dirty"
