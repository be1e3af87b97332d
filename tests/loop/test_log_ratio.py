"""An annealing method of one's own that weighs rollouts by log π_0/π_a, over a buffer that is refreshed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import pytest
import torch

from dtm.config import MethodConfig
from dtm.loop.assemble import assemble
from dtm.loop.trainer import Trainer
from dtm.masking import Coupled, Planned
from dtm.methods import Method
from dtm.methods.surrogates import bounds
from dtm.records import Loss


@dataclass(frozen=True, kw_only=True, slots=True)
class RatioConfig(MethodConfig):
    """No settings."""

    name: str = "ratio"


class Ratio(Method):
    """Raise the bound of completions in proportion to r + log π_0/π_a."""

    Config = RatioConfig
    loop: ClassVar[Literal["anneal", "iterate"]] = "anneal"
    reads_base = True
    ratio_plan = Coupled(1)

    def credit(self, reward, group, *measured):
        (log_ratio,) = measured
        return reward + log_ratio.float()

    def masks(self, block, end_id):
        return Planned(Coupled(1), end_id)

    def loss(self, policy, states, weights, phase):
        bound = bounds(policy.log_pi(states), states)
        return Loss(-(weights.credit * bound).sum() / states.batch_rows, {})


def length(prompts, completions):
    """A reward that differs within every phase."""
    return [len(set(path)) / 5 for path in completions]


@pytest.fixture
def trainer(tiny) -> Trainer:
    config = replace(
        tiny,
        replay=replace(tiny.replay, refresh_every=2),
        tilt=replace(tiny.tilt, max_steps=4, absorbed="never"),
    )
    return Trainer(assemble(config, method=Ratio(), reward=length))


def test_rollouts_of_a_refresh_have_their_ratio_too(trainer):
    """That of π_a, which drew them, and not of the student, which has moved: 0 as long as π_a is π_0."""
    for _ in range(3):
        trainer._advance()
    rollouts = trainer.replay.rollouts
    assert int(rollouts.group.max()) >= trainer.config.replay.prompts  # the buffer was refreshed
    assert (rollouts.log_ratio == 0).all()
    student, teacher = (
        next(model.parameters()) for model in (trainer.policy.student, trainer.policy.teacher)
    )
    assert not torch.equal(student, teacher)
    torch.testing.assert_close(trainer.replay.weights.credit, rollouts.reward)


def test_in_the_next_phase_fresh_and_older_rollouts_have_the_ratio_of_the_new_model(trainer):
    for _ in range(4 + 3):
        trainer._advance()
    assert trainer.progress.phase == 1
    rollouts, first = trainer.replay.rollouts, trainer.config.replay.prompts
    for part in (rollouts.group < first, rollouts.group >= first):
        assert part.any()
        assert rollouts.log_ratio[part].abs().max() > 1e-3
