"""A process that is killed ends the others, and the run continues from a whole checkpoint on any number."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from dtm.config import DistributedConfig, RunConfig
from dtm.distributed import current
from dtm.loop.assemble import assemble
from dtm.loop.trainer import Trainer
from dtm.runs.checkpoint import has_checkpoint, load_latest
from dtm.runs.interrupts import Interrupts
from ranks import Failed, each, outcomes

VERBS = 57
"""Verbs of a whole run of `short` with shards, in two processes; without them there are more."""
RESUME = 3
"""Verbs with which a run is resumed; those of its next step follow."""
IN_STEP_2 = 18
"""A verb of the second step, after the first checkpoint."""
WRITTEN = 8
"""In a resumed step with shards: the verb with which processes say that their files are written."""


def short(tiny: RunConfig) -> RunConfig:
    """A phase of four steps, with a checkpoint after each."""
    return replace(
        tiny,
        tilt=replace(tiny.tilt, final=1.0, max_steps=4),
        replay=replace(tiny.replay, prompts=6, completions=3),
        optimizer=replace(tiny.optimizer, batch=6),
        evaluation=replace(tiny.evaluation, prompts=1, completions=1),
        checkpoint=replace(tiny.checkpoint, every=1),
        distributed=DistributedConfig(row_order=True),
    )


def train(config: RunConfig, folder: Path, number: int = 0, rank: int = 0, sent: int = 0) -> dict[str, Any]:
    """Start or continue a run; before its verb ``number`` process ``rank`` gets the signal ``sent``."""
    group, calls = current(), 0
    with Interrupts() as interrupts:
        trainer = Trainer(assemble(config), checkpoints=folder, between=interrupts.check)

        def counted(verb: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any) -> Any:
                nonlocal calls
                calls += 1
                if sent and (group.rank, calls) == (rank, number):
                    os.kill(os.getpid(), sent)
                return verb(*arguments)

            return call

        # The verb that all others use, or with one process the one that is used most.
        name = "gather" if group.size > 1 else "together"
        setattr(group, name, counted(getattr(group, name)))
        if has_checkpoint(folder):
            trainer.resume(folder)
        trainer.run()
    weights = [value.clone() for value in trainer.policy.tuned().state_dict().values()]
    return {"weights": weights, "evaluations": trainer.progress.evaluations, "verbs": calls}


def require_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found["evaluations"] == expected["evaluations"]
    assert all(map(torch.equal, found["weights"], expected["weights"]))


@pytest.fixture(scope="module")
def expected(tiny, tmp_path_factory) -> dict[str, Any]:
    """The run without a break, in one process."""
    return each(1, train, short(tiny), tmp_path_factory.mktemp("whole"))[0]


def kill(config: RunConfig, folder: Path, size: int, number: int, rank: int) -> None:
    """Kill one process of a run: the others end by themselves, and what is saved is whole."""
    found = outcomes(size, train, config, folder, number, rank, signal.SIGKILL)
    assert found.pop(rank) is None
    assert all(isinstance(other, Failed) and other.kind == "PeerError" for other in found), found
    if has_checkpoint(folder):
        load_latest(folder)


def test_a_run_broken_off_on_2_and_1_processes_ends_on_4_as_if_it_had_not_been(tiny, expected, tmp_path):
    config = short(tiny)
    kill(config, tmp_path, size=2, number=IN_STEP_2, rank=1)
    stopped = outcomes(2, train, config, tmp_path, RESUME + 3, 1, signal.SIGTERM)  # a signal to one of them
    assert [one.kind for one in stopped] == ["Interrupted", "Interrupted"]
    (alone,) = outcomes(1, train, config, tmp_path, RESUME + 3, 0, signal.SIGTERM)
    assert alone.kind == "Interrupted"
    kill(config, tmp_path, size=4, number=RESUME + 2, rank=0)
    assert load_latest(tmp_path).state["step"] == 3  # one step is left to four processes
    for found in each(4, train, config, tmp_path):
        require_equal(found, expected)
    assert load_latest(tmp_path).state["step"] == 4


def test_shards_are_saved_by_their_processes_and_continue_on_any_number(tiny, expected, tmp_path):
    """One process, 2 x 2 of which one is killed while it saves, 2 x 2, 1 x 2, and one process again."""
    config = replace(short(tiny), distributed=DistributedConfig(shard="full", shard_size=2))
    (alone,) = outcomes(1, train, config, tmp_path, 4, 0, signal.SIGTERM)
    assert alone.kind == "Interrupted"
    assert load_latest(tmp_path).state["step"] == 1
    kill(config, tmp_path, size=4, number=RESUME + WRITTEN, rank=1)
    assert load_latest(tmp_path).state["step"] == 1
    assert (tmp_path / ".partial-step-00000002" / "student.1.safetensors").exists()
    for size, step in ((4, 2), (2, 3)):
        found = outcomes(size, train, config, tmp_path, RESUME + 3, 0, signal.SIGTERM)
        assert [one.kind for one in found] == ["Interrupted"] * size
        (newest,) = tmp_path.glob(f"step-0000000{step}*")
        names = {path.name for path in newest.glob("*.safetensors")}
        sharded = {f"{part}.{n}" for part in ("student", "teacher", "average", "optimizer") for n in (0, 1)}
        assert names == {f"{name}.safetensors" for name in (*sharded, "buffer", "meter")}
    (resumed,) = each(1, train, config, tmp_path)
    for one, other in zip(resumed["weights"], expected["weights"], strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("shard", ["none", "full"])
def test_killed_at_any_moment_a_run_ends_as_if_it_had_not_been(tiny, expected, tmp_path, shard, seed):
    draw, sharded = random.Random(seed), DistributedConfig(shard="full", shard_size=2)
    config = short(tiny) if shard == "none" else replace(short(tiny), distributed=sharded)
    size = draw.choice([2, 4])
    kill(config, tmp_path, size, number=draw.randint(1, VERBS), rank=draw.randrange(size))
    for found in each(draw.choice([1, 2, 4]), train, config, tmp_path):
        if shard == "none":
            require_equal(found, expected)
        for one, other in zip(found["weights"], expected["weights"], strict=True):
            torch.testing.assert_close(one, other, atol=1e-4, rtol=0)


def fail_ahead(config: RunConfig, folder: Path) -> int:
    """Run with a reward that fails in the second process, on its share of the first refresh."""
    calls, rank = 0, current().rank

    def reward(prompts: list[Any], completions: list[Any]) -> list[float]:
        nonlocal calls
        calls += 1
        if rank == 1 and calls > 1:  # after its share of the buffer
            raise KeyError("answer")
        return [float(row % 3) for row in range(len(prompts))]

    Trainer(assemble(config, reward=reward), checkpoints=folder).run()
    return calls


def test_a_reward_that_fails_ahead_of_time_stops_and_saves_all(tiny, tmp_path):
    config = replace(short(tiny), decoding=replace(tiny.decoding, ahead=True))
    config = replace(config, replay=replace(tiny.replay, refresh_every=1))
    found = outcomes(2, fail_ahead, config, tmp_path)
    assert [one.kind for one in found] == ["RewardError", "RewardError"]
    assert load_latest(tmp_path).state["step"] == 1
