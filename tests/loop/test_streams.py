"""What a run draws: training prompts in order, and noise that no two draws share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch

from dtm.engine.collect import Collector, prompts_in_order
from dtm.loop.assemble import assemble
from dtm.loop.progress import Progress
from dtm.loop.trainer import Trainer
from dtm.random import stream


@dataclass(frozen=True)
class Draw:
    """Rollouts that a collector was asked for."""

    split: str
    tilt: float
    seed: int
    first_group: int
    prompts: Sequence[Any]


@pytest.fixture(scope="module")
def draws(tiny) -> dict[int, list[Draw]]:
    """All rollouts of the tiny run in order, by the seed of the run."""
    found: dict[int, list[Draw]] = {0: [], 1: []}
    task, collect = assemble(tiny).task, Collector.collect
    splits = {
        view: split
        for split in ("train", "validation", "test")
        for view in task.prompts(split, 500, stream(0, "all")).views
    }
    with pytest.MonkeyPatch.context() as patch:
        for run, asked in found.items():

            def recorded(self, prompts, completions, tilt, seed, first_group=0, ahead=None, asked=asked):
                (split,) = {splits[view] for view in prompts.views}
                asked.append(Draw(split, tilt, seed, first_group, prompts.views))
                return collect(self, prompts, completions, tilt, seed, first_group, ahead)

            patch.setattr(Collector, "collect", recorded)
            Trainer(assemble(replace(tiny, seed=run))).run()
    return found


def trained_on(draws: list[Draw]) -> list[Draw]:
    return [draw for draw in draws if draw.split == "train"]


def test_rollouts_are_of_training_prompts_and_evaluations_of_validation_prompts(draws):
    """A buffer and a refresh per phase; an evaluation before, between and after."""
    phase = ["train"] * 2
    expected = ["validation", *phase, "validation", *phase, "validation"]
    assert [draw.split for draw in draws[0]] == expected
    assert [draw.tilt for draw in trained_on(draws[0])] == [0.0] * 2 + [1.0] * 2


def test_no_two_rollouts_of_a_run_share_their_noise_nor_do_runs_of_two_seeds(draws):
    noise = [draw.seed for run in draws.values() for draw in trained_on(run)]
    assert len(noise) == len(set(noise)) == 8


def test_training_goes_on_through_the_prompts_in_the_order_of_its_seed(draws, tiny):
    task, chunk = assemble(tiny).task, tiny.replay.prompts
    for seed, run in draws.items():
        asked = [view for draw in trained_on(run) for view in draw.prompts]
        assert asked == list(prompts_in_order(task, 0, len(asked), chunk, seed).views)


def test_fresh_groups_are_numbered_after_those_of_the_buffer(draws):
    """Eight prompts, two of which are replaced: the oldest groups have the lowest numbers."""
    assert [draw.first_group for draw in trained_on(draws[0])] == [0, 8] * 2


def test_a_batch_follows_the_seed_and_the_step_of_its_run(tiny, make_trainer):
    trainer = make_trainer(tiny)
    replay = trainer.open_phase()

    def batch(seed: int, step: int) -> torch.Tensor:
        learner = replace(trainer.learner, config=replace(tiny, seed=seed))
        return learner.batch(replay, Progress(step=step))[0].tokens

    assert torch.equal(batch(0, 0), batch(0, 0))
    for other in (batch(0, 1), batch(0, 2), batch(1, 0)):
        assert not torch.equal(batch(0, 0), other)
