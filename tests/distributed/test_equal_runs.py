"""The same configuration and seed is the same run in 1, 2 and 4 processes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from dtm.config import (
    AdapterConfig,
    DistributedConfig,
    EvaluationConfig,
    IterateConfig,
    OptimizerConfig,
    ReplayConfig,
    RunConfig,
    TiltConfig,
    configure_method,
)
from dtm.distributed import current
from dtm.distributed.sharding import whole
from dtm.loop.assemble import assemble
from dtm.loop.trainer import Trainer
from ranks import each, outcomes

LORA = AdapterConfig(rank=2, alpha=2.0)
ORDERED = DistributedConfig(row_order=True)
TWO_BY_TWO = "c-dtm, two replicas, shares"
"""In two processes there is one replica."""


def settings(tiny: RunConfig) -> dict[str, RunConfig]:
    """Runs of ten updates; five prompts of three completions divide by no number of processes."""
    start = replace(
        tiny,
        tilt=TiltConfig(step=1.0, final=1.0, max_steps=10, absorbed="never"),
        iterate=IterateConfig(iterations=3),
        replay=ReplayConfig(prompts=5, completions=3, refresh_every=6),
        optimizer=OptimizerConfig(lr=1e-3, batch=9, ema=0.5),
        evaluation=EvaluationConfig(prompts=3, completions=1, every=9),
    )
    iterating = {
        name: replace(start, method=replace(configure_method(name), updates=4))
        for name in ("spg", "wd1", "vrpo")
    }
    return {
        "c-dtm, row order": replace(start, distributed=ORDERED, decoding=replace(start.decoding, ahead=True)),
        "c-dtm, lora": replace(start, adapter=LORA),
        "spg, lora, row order": replace(iterating["spg"], adapter=LORA, distributed=ORDERED),
        "wd1": iterating["wd1"],
        "vrpo, row order": replace(
            iterating["vrpo"], distributed=ORDERED, iterate=IterateConfig(iterations=6)
        ),
        "c-dtm, shares": replace(start, distributed=DistributedConfig(shard="full")),
        TWO_BY_TWO: replace(start, distributed=DistributedConfig(shard="full", shard_size=2)),
    }


def run(config: RunConfig, to_the_end: bool) -> dict[str, Any]:
    """The first batch and its gradient in both modes, then the run."""
    trainer = Trainer(assemble(config))
    replay = trainer.open_phase()
    learner, progress = trainer.learner, trainer.progress
    states, weights = learner.batch(replay, progress)
    found: dict[str, Any] = {
        "rollouts": replay.rollouts.tensors(),
        "weights": (replay.weights.log_weight, replay.weights.credit),
        "masks": (states.tokens, states.row_weight),
    }
    for ordered in (False, True):
        mode = replace(config.distributed, row_order=ordered)
        chosen = replace(learner, config=replace(config, distributed=mode))
        metrics = chosen.gradient(states, weights, learner.phase(replay, progress), 0)
        gradient = [whole(parameter.grad).clone() for parameter in trainer.policy.trained()]
        found["ordered" if mode.row_order else "summed"] = [metrics["loss"], *gradient]
        trainer.optimizer.zero_grad()
    if not to_the_end:
        return found
    trainer.run()
    found["steps"], found["spent"] = progress.step, (progress.spent_tokens, progress.spent_flops)
    found["evaluations"] = progress.evaluations
    trained = trainer.policy.weights(trainer.policy.teacher).values()
    found["trained"] = [whole(value).clone() for value in trained]
    return found


def runs(configs: dict[str, RunConfig]) -> dict[str, dict[str, Any]]:
    """All runs; in four processes, which take long to share two cores, two of them to the end."""
    in_four = ("c-dtm, row order", TWO_BY_TWO)
    return {name: run(config, current().size < 4 or name in in_four) for name, config in configs.items()}


@pytest.fixture(scope="module")
def alone(tiny) -> dict[str, dict[str, Any]]:
    return each(1, runs, settings(tiny))[0]


@pytest.fixture(scope="module", params=[2, 4])
def found(request, tiny) -> list[dict[str, dict[str, Any]]]:
    return each(request.param, runs, settings(tiny))


def same(one: Any, other: Any) -> bool:
    """Equal bit for bit."""
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


def whole_gradient(found: list[torch.Tensor]) -> torch.Tensor:
    """The gradient of a batch as one vector; the first entry is the loss."""
    return torch.cat([part.flatten() for part in found[1:]])


def test_rollouts_rewards_weights_and_masks_are_the_same_bit_for_bit(alone, found):
    for process in found:
        for name, expected in alone.items():
            rollouts = dict(process[name]["rollouts"])
            log_prob = rollouts.pop("log_prob")  # of the row among others: the same to rounding
            torch.testing.assert_close(log_prob, expected["rollouts"]["log_prob"], atol=1e-5, rtol=0)
            assert all(same(rollouts[part], expected["rollouts"][part]) for part in rollouts), name
            assert same(process[name]["weights"], expected["weights"]), name
            assert same(process[name]["masks"], expected["masks"]), name


def test_in_row_order_gradients_and_runs_are_the_same_bit_for_bit(alone, found):
    for process in found:
        for name, expected in alone.items():
            if not name.endswith("shares"):
                assert same(process[name]["ordered"], expected["ordered"]), name
            if name.endswith("row order"):
                differs = [part for part in process[name] if not same(process[name][part], expected[part])]
                assert set(differs) <= {"summed"}, name


def test_otherwise_gradients_and_runs_are_the_same_to_rounding(alone, found):
    for process in found:
        for name, expected in alone.items():
            # One row per pass: with shares, processes with fewer rows repeat one that must not count.
            modes = ("summed", "ordered") if name.endswith("shares") else ("summed",)
            for mode in modes:
                for one, other in zip(process[name][mode], expected[mode], strict=True):
                    assert float((one - other).norm()) <= 1e-5 * float(other.norm()), (name, mode)
                one, other = (whole_gradient(found[mode]) for found in (process[name], expected))
                assert float((one - other).norm()) <= 1e-6 * float(other.norm()), (name, mode)
            if "trained" in process[name]:
                for one, other in zip(process[name]["trained"], expected["trained"], strict=True):
                    torch.testing.assert_close(one, other, atol=1e-5, rtol=0)
                assert process[name]["steps"] == expected["steps"] >= 10, name
                assert process[name]["spent"] == expected["spent"]


def budgeted(config: RunConfig) -> dict[str, Any]:
    trainer = Trainer(assemble(config))
    trainer.run()
    progress = trainer.progress
    return {"steps": progress.step, "tokens": progress.spent_tokens, "evaluations": progress.evaluations}


def test_a_budget_of_tokens_ends_two_processes_at_the_same_step(tiny):
    config = replace(
        settings(tiny)["c-dtm, row order"],
        tilt=TiltConfig(step=1.0, final=9.0, max_steps=4, absorbed="never"),
        budget="12000tokens",
    )
    ((one,), (two, other)) = (each(size, budgeted, config) for size in (1, 2))
    assert two == other == one
    assert one["steps"] > 4
    assert one["tokens"] >= 12000


def test_gradients_that_are_not_finite_stop_both_processes_with_the_same_message(tiny):
    start = settings(tiny)["c-dtm, lora"]
    config = replace(start, optimizer=replace(start.optimizer, lr=1e30, clip_norm=1e30))
    (alone,), both = (outcomes(size, budgeted, config) for size in (1, 2))
    assert alone.kind == "DivergedError"
    assert [(one.kind, one.text) for one in both] == [(alone.kind, alone.text)] * 2


def test_all_processes_hold_the_same(found):
    for process in found[1:]:
        assert all(same(process[name], found[0][name]) for name in process)
