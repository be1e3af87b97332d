"""One tiny maze, one tiny base, one finished run of it: shared by all tests of a session."""

from __future__ import annotations

import shapes  # isort: skip  # noqa: F401, before dtm, whose modules are marked as they are imported

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import dtm
from checkpoints import reference, shared_data, write_hub, write_source, write_talking  # noqa: F401, fixtures for all
from dtm.config import (
    CheckpointConfig,
    EvaluationConfig,
    ModelConfig,
    OptimizerConfig,
    PretrainConfig,
    ReplayConfig,
    RunConfig,
    TiltConfig,
)
from dtm.loop.assemble import assemble
from dtm.loop.trainer import Trainer
from dtm.pretraining.pretrainer import pretrainer_of
from dtm.records import Rollouts
from dtm.report import run as report
from dtm.writing import save_figure
from published import write_published  # noqa: F401


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Sums are then taken in one order, here and in the subprocesses that tests start."""
    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def undrawn() -> Iterator[None]:
    """Draw no pictures in runs, but in `finished`: they take a part of the time of small ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "save_figure", lambda figure, path: None)
        yield


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> RunConfig:
    """Two phases of four steps on a 7×7 maze, from a base pretrained for two seconds."""
    folder = tmp_path_factory.mktemp("base")
    start = dtm.recipe("maze-small")
    config = replace(
        start,
        task=replace(start.task, size=7, completion_length=5),
        model=ModelConfig(base=str(folder), width=32, layers=1, heads=2, ffn=48),
        decoding=replace(start.decoding, batch=16),
        tilt=TiltConfig(step=1.0, final=2.0, max_steps=4),
        replay=ReplayConfig(prompts=8, completions=4, refresh_every=2),
        optimizer=OptimizerConfig(lr=1e-3, batch=16, ema=0.5),
        evaluation=EvaluationConfig(prompts=4, completions=2),
        checkpoint=CheckpointConfig(every=2),
        pretrain=PretrainConfig(steps=300, batch=64, lr=1e-2, held_out=64),
    )
    pretrainer = pretrainer_of(assemble(replace(config, model=replace(config.model, base=None))))
    pretrainer.run()
    dtm.save_model(pretrainer.model, folder)
    return config


@pytest.fixture(scope="session")
def finished(tiny, tmp_path_factory) -> dtm.Run:
    """The run of `tiny`, from start to end without a break."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(report, "save_figure", save_figure)
        return dtm.train(tiny, out=tmp_path_factory.mktemp("runs") / "finished")


@pytest.fixture
def make_trainer() -> Callable[..., Trainer]:
    """A trainer of a configuration, put together as `dtm.train` does."""

    def make(
        config: RunConfig,
        checkpoints: Path | None = None,
        callbacks: Sequence[Callable] = (),
        between: Callable[[], None] = lambda: None,
        reward: Callable | None = None,
    ) -> Trainer:
        return Trainer(
            assemble(config, reward=reward), callbacks=callbacks, checkpoints=checkpoints, between=between
        )

    return make


@pytest.fixture
def make_rollouts() -> Callable[..., Rollouts]:
    """Rollouts with given rewards and groups; row j holds the token j everywhere."""

    def make(reward: Sequence[float], group: Sequence[int], tilt: float = 0.0, width: int = 4) -> Rollouts:
        rows = len(reward)
        tokens = torch.arange(rows)[:, None].expand(rows, width).clone()
        everywhere = torch.ones(rows, width, dtype=torch.bool)
        steps = torch.zeros(rows, width, dtype=torch.long)
        scores, numbers = torch.tensor(reward).float(), torch.tensor(group)
        return Rollouts(
            tokens, everywhere, everywhere, steps, torch.zeros(rows, width), scores, numbers, tilt
        )

    return make
