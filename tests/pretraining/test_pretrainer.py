"""Pretraining a base: it learns, it can be stopped anywhere, and its bound is a bound."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

import dtm
from dtm.config import CheckpointConfig, PretrainConfig
from dtm.errors import ConfigError
from dtm.loop.assemble import assemble
from dtm.masking import MaskCount
from dtm.pretraining.plan import pretraining_plan, pretraining_time_estimate
from dtm.pretraining.pretrainer import Pretrainer, cosine, pretrainer_of
from dtm.runs.interrupts import Interrupted


@pytest.fixture
def short(tiny):
    return replace(tiny, pretrain=replace(tiny.pretrain, steps=12, held_out=256))


@pytest.mark.parametrize(("every", "keep", "steps"), [(5, 2, [5, 10]), (4, 1, [12]), (None, 2, [])])
def test_checkpoints_are_written_and_kept_as_configured(every, keep, steps, short, tmp_path):
    settings = replace(short, checkpoint=CheckpointConfig(every=every, keep=keep))
    pretrainer_of(assemble(settings), checkpoints=tmp_path).run()
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"step-{step:08d}" for step in steps]


def pretrainer(config, checkpoints=None, stop_at: int | None = None) -> Pretrainer:
    def between() -> None:
        if trainer.step == stop_at:
            raise Interrupted

    trainer = pretrainer_of(assemble(config), checkpoints=checkpoints, between=between)
    return trainer


@pytest.mark.parametrize("stop_at", [0, 5, 11])
def test_a_pretraining_that_was_stopped_ends_as_if_it_had_not_been(stop_at, short, tmp_path):
    whole = pretrainer(short)
    bound = whole.run()
    with pytest.raises(Interrupted):
        pretrainer(short, tmp_path, stop_at).run()
    resumed = pretrainer(short, tmp_path)
    resumed.resume(tmp_path)
    assert resumed.step == stop_at
    assert resumed.run() == bound
    for name, value in whole.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], value)


def test_micro_batches_change_memory_and_never_the_gradient(short, monkeypatch):
    def after_a_step(config) -> list[torch.Tensor]:
        trainer = pretrainer(config)
        trainer._advance()
        return list(trainer.model.parameters())

    whole = after_a_step(short)
    monkeypatch.setattr("dtm.pretraining.pretrainer.available", lambda device: 2**19)  # few rows fit
    for one, other in zip(whole, after_a_step(short), strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0)
    assert 1 <= pretrainer(short)._fitting(10) < short.pretrain.batch


def test_an_untrained_model_is_at_the_entropy_of_a_guess(short):
    """Five tokens, each one of 51: the mask token is no guess."""
    assert pretrainer(short).bound() == pytest.approx(5 * math.log(51), rel=0.03)


def test_pretraining_learns_and_leaves_a_base_to_tilt(short, tmp_path):
    config = replace(short, pretrain=replace(short.pretrain, steps=100))
    before = pretrainer(config).bound()
    run = dtm.pretrain(config, out=tmp_path / "base")
    assert run.summary["held_out_bound"] < before - 5
    assert run.summary["held_out_bound"] == run.events("step")[-1]["held_out"]
    assert run.summary["best"] == pytest.approx(2 / 3)
    tuned = replace(
        config, model=replace(config.model, base=str(run.folder.model)), tilt=replace(config.tilt, final=1.0)
    )
    base = assemble(tuned).base
    assert torch.equal(base.norm.weight, run.model.norm.weight)


def test_the_last_steps_can_be_masked_in_the_decoders_blocks(short, tmp_path):
    config = replace(
        short,
        decoding=replace(short.decoding, block=2),
        pretrain=replace(short.pretrain, settle=0.25),
    )
    trainer, blocks = pretrainer(config), []
    for trainer.step in range(12):
        blocks.append(trainer.masking.block)
    assert blocks == [None] * 9 + [2] * 3
    settled, plain = pretrainer(config), pretrainer(replace(config, pretrain=short.pretrain))
    settled.run()
    plain.run()
    pairs = zip(settled.model.parameters(), plain.model.parameters(), strict=True)
    assert not any(torch.equal(one, other) for one, other in pairs)
    again = pretrainer(config, tmp_path / "checkpoints", stop_at=8)
    with pytest.raises(Interrupted):
        again.run()
    resumed = pretrainer(config)
    resumed.resume(tmp_path / "checkpoints")
    assert resumed.run() == settled.bound()


def test_settling_needs_blocks(short, tmp_path):
    config = replace(
        short,
        decoding=replace(short.decoding, block=None),
        method=replace(short.method, after_end=True),
        pretrain=replace(short.pretrain, settle=0.3),
    )
    for use in (pretrainer_of, pretraining_plan, pretraining_time_estimate):
        with pytest.raises(ConfigError, match=r"--decoding.block, or --pretrain.settle 0"):
            use(assemble(config))
    with pytest.raises(ConfigError, match=r"give --decoding\.block"):
        dtm.pretrain(config, out=tmp_path / "base")
    assert not (tmp_path / "base").exists()


def test_settling_leaves_out_the_blocks_after_the_end_if_asked(short):
    for after_end in (True, False):
        config = replace(
            short,
            decoding=replace(short.decoding, block=2),
            pretrain=replace(short.pretrain, settle=0.3, after_end=after_end),
        )
        assembly = assemble(config)
        usual, late = assembly.pretraining_masks()
        assert (usual.block, usual.end_id) == (None, None)
        assert (late.block, late.end_id) == (2, None if after_end else assembly.task.eos_id)


def test_the_rate_can_be_held_before_it_falls():
    factors = [cosine(step, 102, 0.5) for step in range(102)]
    assert factors[2:54] == [1.0] * 52
    assert factors[54] < 1
    assert factors[54:] == sorted(factors[54:], reverse=True)
    with pytest.raises(ConfigError, match=r"pretrain\.hold must lie in"):
        PretrainConfig(hold=1.0)


def test_the_rate_warms_up_and_falls_as_a_cosine():
    factors = [cosine(step, 102) for step in range(102)]
    assert factors[:3] == pytest.approx([0.5, 1.0, 1.0])
    assert factors[52] == pytest.approx(0.5)
    assert 0 < factors[-1] < 0.001
    assert all(a >= b for a, b in pairwise(factors[1:]))


@pytest.mark.parametrize("settle", [0.0, 1.0])
def test_masks_are_skewed_in_training_and_not_in_the_bound(settle, short, monkeypatch):
    drawn = []
    states = MaskCount.states

    def recorded(self, *arguments, **named):
        drawn.append(self.skew)
        return states(self, *arguments, **named)

    monkeypatch.setattr(MaskCount, "states", recorded)
    config = replace(short, pretrain=replace(short.pretrain, steps=1, settle=settle, mask_skew=2.0))
    trained = pretrainer_of(assemble(config))
    trained.run()
    assert drawn[0] == 2.0
    assert set(drawn[1:]) == {1.0}
