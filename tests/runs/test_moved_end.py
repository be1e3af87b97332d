"""A run that has not finished may end at the tilt it has reached, or go further than it was meant to."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import dtm
from dtm.errors import ConfigError
from dtm.runs.interrupts import Interrupted
from dtm.runs.resume import find_run


class StopAtStep:
    """A callback that stops a run once, after so many steps."""

    def __init__(self, step):
        self.step = step

    def __call__(self, event):
        if event.kind == "step" and event.step == self.step:
            self.step = None
            raise Interrupted


def ending_at(config, final):
    return replace(config, tilt=replace(config.tilt, final=final))


def test_a_stopped_run_can_end_at_the_tilt_it_has_reached(tiny, tmp_path):
    """Its model is that of a run that was meant to end there."""
    run = dtm.train(tiny, out=tmp_path / "run", callbacks=[StopAtStep(6)])  # in the second phase
    assert not run.is_finished
    run = dtm.train(ending_at(tiny, 1.0), out=run.path, resume=True)
    assert run.is_finished
    assert run.events("stopped")[-1]["tilt"] == 1.0
    assert [row["tilt"] for row in run.events("evaluation")] == [0.0, 1.0]
    short = dtm.train(ending_at(tiny, 1.0), out=tmp_path / "short")
    for name, value in short.model.state_dict().items():
        assert torch.equal(run.model.state_dict()[name], value), name
    assert dtm.Run.open(run.path).config.tilt.final == 1.0
    assert run.summary["finished"] == "reached the final tilt A = 1"
    with pytest.raises(ConfigError, match=r"tilt\.final: 1\.0 → 2\.0"):  # a finished run stays as it is
        dtm.train(tiny, out=run.path, resume=True)


def test_a_stopped_run_can_go_further_than_it_was_meant_to(tiny, finished, tmp_path):
    short = ending_at(tiny, 1.0)
    run = dtm.train(short, out=tmp_path / "run", callbacks=[StopAtStep(3)])
    run = dtm.train(tiny, out=run.path, resume=True)
    for name, value in finished.model.state_dict().items():
        assert torch.equal(run.model.state_dict()[name], value), name


def test_an_end_inside_the_phase_under_way_is_refused(tiny, tmp_path):
    run = dtm.train(tiny, out=tmp_path / "run", callbacks=[StopAtStep(6)])
    with pytest.raises(ConfigError, match=r"from 1\.0 to 2\.0, and cannot end at 1\.5 between the two"):
        dtm.train(ending_at(tiny, 1.5), out=run.path, resume=True)
    assert run.config.tilt.final == 2.0


def test_an_end_before_the_tilt_that_was_reached_is_refused(tiny, tmp_path):
    run = dtm.train(ending_at(tiny, 3.0), out=tmp_path / "run", callbacks=[StopAtStep(9)])
    with pytest.raises(ConfigError, match=r"has reached 2\.0: it can end there or later, not at 1\.0"):
        dtm.train(ending_at(tiny, 1.0), out=run.path, resume=True)


def test_the_ends_that_an_error_names_are_accepted(tiny, tmp_path):
    """Also where h has many digits."""
    config = replace(tiny, tilt=replace(tiny.tilt, step=1.3333337, final=4.0))
    run = dtm.train(config, out=tmp_path / "run", callbacks=[StopAtStep(6)])
    with pytest.raises(ConfigError) as caught:
        dtm.train(ending_at(config, 2.0), out=run.path, resume=True)
    last = float(str(caught.value).rpartition("at ")[2])
    run = dtm.train(ending_at(config, last), out=run.path, resume=True)
    assert len(run.events("phase")) == 2
    assert run.events("stopped")[-1]["tilt"] == last


def test_a_discarded_phase_leaves_no_trace_in_the_student(tiny, make_trainer, tmp_path):
    def stop():
        if trainer.progress.step == 6:
            raise Interrupted

    trainer = make_trainer(tiny, tmp_path, between=stop)
    with pytest.raises(Interrupted):
        trainer.run()
    again = make_trainer(ending_at(tiny, 1.0), tmp_path)
    again.resume(tmp_path)
    student, teacher = again.policy.student.state_dict(), again.policy.teacher.state_dict()
    assert all(torch.equal(student[name], teacher[name]) for name in teacher)
    assert (again.progress.phase_step, again.progress.h, again.replay) == (0, None, None)


def test_an_end_that_was_moved_by_hand_is_refused(tiny, tmp_path):
    run = dtm.train(tiny, out=tmp_path / "run", callbacks=[StopAtStep(6)])
    run = dtm.train(ending_at(tiny, 1.0), out=run.path, resume=True)
    assert find_run("maze-small", "train", run.path) is not None  # moved by a flag
    run.folder.config.write_text(run.folder.config.read_text().replace("final: 1.0", "final: 5.0"))
    with pytest.raises(ConfigError, match=r"was edited after the run started:\n  tilt.final: 1.0 → 5.0\n"):
        find_run("maze-small", "train", run.path)
