"""How far to tilt, how fast to learn, when to measure, when to stop."""

from __future__ import annotations

import math

import pytest
import torch

from dtm import tilts
from dtm.config import (
    EvaluationConfig,
    IterateConfig,
    OptimizerConfig,
    RunConfig,
    TiltConfig,
    configure_method,
)
from dtm.config.registry import load_method_class
from dtm.loop.base import Loop, has_plateaued, reading
from dtm.loop.progress import Progress
from dtm.loop.registry import make_loop
from dtm.losses import AdaptiveControl
from dtm.random import stream
from dtm.tilts import next_step, phases


def loop_of(config: RunConfig) -> Loop:
    return make_loop(config, load_method_class(config.method.name)(config.method))


def chosen_step(make_rollouts, config: TiltConfig, reward: torch.Tensor) -> float:
    """h of a first phase whose rollouts, each of its own prompt, earned these rewards."""
    loop = loop_of(RunConfig(tilt=config, method=configure_method("c-dtm", prompt_baseline=False)))
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    return loop.begin(make_rollouts(reward.tolist(), range(len(reward))), 0.0, optimizer)


@pytest.mark.parametrize("start", [0.0, 0.7, 9.99, 2.5])
@pytest.mark.parametrize("step", [2.5, 3.0, 0.3])
def test_annealing_lands_on_the_final_tilt_from_anywhere(start, step):
    tilt, steps = start, []
    while tilt < 10.0:
        steps.append(next_step(tilt, 10.0, step))
        tilt += steps[-1]
    assert tilt == pytest.approx(10.0, abs=1e-9)
    assert all(h == step for h in steps[:-1])
    assert 0 < steps[-1] <= step


def test_the_last_step_is_cut():
    assert next_step(9.0, 10.0, 2.5) == 1.0
    assert next_step(7.5, 10.0, 2.5) == 2.5
    assert next_step(10 / 3, 6.6666667, 10 / 3) == 6.6666667 - 10 / 3


@pytest.mark.parametrize(
    ("final", "step"), [(6.6666667, 10 / 3), (10.0, 2.5), (10.0, 3.0), (1.0, 2.0), (6.7, 10 / 3)]
)
def test_phases_are_counted_as_they_are_taken(final, step):
    tilt, taken = 0.0, 0
    while tilt < final - 1e-9:
        tilt, taken = tilt + next_step(tilt, final, step), taken + 1
    assert phases(final, step) == taken


def test_a_fixed_step_does_not_look_at_rewards(make_rollouts):
    config = TiltConfig(step=2.5, final=10.0)
    assert chosen_step(make_rollouts, config, torch.tensor([0.0, 100.0])) == 2.5


def test_an_automatic_step_meets_the_effective_sample_size(make_rollouts):
    reward = torch.randn(500, generator=torch.Generator().manual_seed(0))
    config = TiltConfig(step="auto", ess=0.6, step_cap=5.0, final=10.0)
    h = chosen_step(make_rollouts, config, reward)
    assert 0.1 < h < 5
    assert float(tilts.effective_sample_size(h * reward.double())) == pytest.approx(0.6, abs=1e-6)


def test_an_automatic_step_looks_at_rewards_above_those_of_the_prompt(make_rollouts):
    """Prompts that differ, whose completions do not, leave every weight at 1: the cap is the answer."""
    config = RunConfig(tilt=TiltConfig(step="auto", ess=0.6, step_cap=5.0, final=10.0))
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    rollouts = make_rollouts([0.0, 0.0, 9.0, 9.0], [0, 0, 1, 1])
    assert loop_of(config).begin(rollouts, 0.0, optimizer) == 5.0


def test_an_automatic_step_is_capped_where_rewards_say_nothing(make_rollouts):
    config = TiltConfig(step="auto", step_cap=3.0, final=10.0)
    assert chosen_step(make_rollouts, config, torch.full((20,), 0.5)) == 3.0


def lasting(max_steps: int, warmup: float, decay: float, floor: float = 0.0) -> Loop:
    return loop_of(
        RunConfig(
            tilt=TiltConfig(max_steps=max_steps, absorbed=0.9),
            optimizer=OptimizerConfig(warmup=warmup, decay=decay, floor=floor),
        )
    )


def test_the_learning_rate_rises_holds_and_falls():
    """Four steps up, hold, and in the last five steps down towards zero."""
    loop = lasting(20, warmup=0.2, decay=0.25)
    factors = [loop.lr_factor(step) for step in range(21)]
    assert factors == pytest.approx([0.25, 0.5, 0.75, *[1] * 13, 0.8, 0.6, 0.4, 0.2, 0])


def test_the_learning_rate_falls_to_its_floor():
    loop = lasting(20, 0.0, 0.25, floor=0.5)
    assert [loop.lr_factor(step) for step in range(15, 21)] == pytest.approx([1, 0.9, 0.8, 0.7, 0.6, 0.5])


def test_a_phase_that_lands_falls_to_zero_from_where_it_is():
    """In a fifth of its steps: while it warms up, while it holds, and while it cools."""
    loop = lasting(20, warmup=0.2, decay=0.25)
    warming, holding, cooling = (
        [loop.lr_factor(begin + step, begin) for step in range(5)] for begin in (1, 8, 16)
    )
    assert warming == pytest.approx([0.5, 0.75 * 0.75, 0.5, 0.25, 0])
    assert holding == pytest.approx([1, 0.75, 0.5, 0.25, 0])
    assert cooling == pytest.approx([0.8, 0.6 * 0.75, 0.4 * 0.5, 0.2 * 0.25, 0])


def test_without_warmup_or_cooling_the_rate_is_constant():
    loop = lasting(20, warmup=0.0, decay=0.0)
    assert [loop.lr_factor(step) for step in (0, 1, 19)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("absorbed", "stalled", "expected"),
    [(0.91, False, "absorbed"), (0.89, False, None), (0.4, True, "no longer rising")],
)
def test_a_phase_lands_once_enough_or_no_more_is_absorbed(absorbed, stalled, expected):
    assert lasting(20, warmup=0.0, decay=0.25).reason_to_land(absorbed, stalled) == expected
    never = loop_of(RunConfig(tilt=TiltConfig(absorbed="never")))
    assert never.reason_to_land(absorbed, stalled) is None


@pytest.mark.parametrize(("steps", "read_at"), [(40, list(range(5, 40, 5))), (3, [1, 2])])
def test_the_meter_is_read_eight_times_in_a_phase(steps, read_at):
    loop = lasting(steps, warmup=0.0, decay=0.0)
    assert [step for step in range(steps) if loop.reads_meter(step)] == read_at
    never = loop_of(RunConfig(tilt=TiltConfig(absorbed="never", max_steps=steps)))
    assert not any(never.reads_meter(step) for step in range(steps))


def test_a_phase_is_over_when_it_has_landed_or_spent_its_steps():
    loop = lasting(20, warmup=0.0, decay=0.25)
    landing = [Progress(phase_step=step, landing_from=3) for step in (6, 7)]
    assert [loop.phase_is_over(progress) for progress in landing] == [False, True]
    assert [loop.phase_is_over(Progress(phase_step=step)) for step in (19, 20)] == [False, True]


@pytest.mark.parametrize(
    ("ess", "absorbed", "on_buffer", "advice"),
    [
        (0.5, (0.6, 0.1), None, None),
        (0.5, (0.45, 0.1), 0.9, None),
        (0.5, None, None, None),
        (0.05, (0.2, 0.1), 0.9, "--tilt.step auto"),
        (0.5, (0.2, 0.1), 0.9, "absorbed 90% of the tilt on the rollouts that it is trained on"),
        (0.5, (0.2, 0.1), 0.3, "--optimizer.lr or --tilt.max-steps"),
        (0.5, (0.3, math.inf), None, "too few prompts are held out"),
        (0.05, (0.3, math.inf), None, "--tilt.step auto"),
    ],
)
def test_a_phase_that_absorbs_little_has_a_cause(ess, absorbed, on_buffer, advice):
    cause = lasting(20, warmup=0.0, decay=0.0).cause(ess, absorbed, on_buffer)
    assert cause is None if advice is None else advice in cause


@pytest.mark.parametrize(
    ("share", "error", "shown"),
    [
        (0.64, 0.1, "64% ± 10%"),
        (-0.3, 0.1, "-30% ± 10%"),
        (0.0209, 0.0041, "2.1% ± 0.4%"),
        (0.05, 0.12, "not yet measurable"),
        (0.5, math.inf, "not yet measurable"),
        (None, None, "not yet measurable"),
        (0.0, 0.0, "0%"),
    ],
)
def test_a_reading_is_shown_once_it_exceeds_its_error(share, error, shown):
    assert reading(share, error) == shown


@pytest.mark.parametrize(
    ("rewards", "patience", "expected"),
    [
        ([0.1, 0.2, 0.3], 1, False),
        ([0.1, 0.3, 0.2], 1, True),
        ([0.1, 0.3, 0.3], 1, True),
        ([0.1, 0.3, 0.2], 2, False),
        ([0.3, 0.1, 0.2], 2, True),
        ([0.3, 0.1, 0.2], None, False),
        ([0.3, 0.2], 2, False),
        ([], 1, False),
    ],
)
def test_a_plateau_is_no_rise_above_the_best_before(rewards, patience, expected):
    assert has_plateaued(rewards, patience) == expected


def test_a_long_run_holds_few_evaluations_and_decides_as_with_all():
    """The base's, the latest, and the best between: a checkpoint does not grow."""
    for seed in range(20):
        rewards = torch.rand(40, generator=stream(seed, "rewards")).tolist()
        progress = Progress()
        for place, reward in enumerate(rewards, start=1):
            progress.measured({"tilt": float(place), "reward": reward}, recent=4)
            kept = [row["reward"] for row in progress.evaluations]
            assert kept[0] == rewards[0]
            assert kept[-1] == reward
            assert len(kept) <= 6
            assert all(has_plateaued(kept, n) == has_plateaued(rewards[:place], n) for n in (1, 2, 3, 4))


ITERATING = {"method": configure_method("wd1"), "iterate": IterateConfig(iterations=10)}


def measured(*rewards: float, tilt: float = 4.0, **counters) -> Progress:
    """A run that stands at a tilt, with so many evaluations behind it, the last at tilt 3."""
    rows = [{"tilt": 3.0, "reward": reward} for reward in rewards]
    return Progress(tilt=tilt, evaluations=rows, **counters)


@pytest.mark.parametrize(
    ("progress", "expected"),
    [
        (measured(phase=0), True),
        (measured(0.1, phase=3), False),
        (measured(0.1, phase=4), True),
        (measured(0.1, phase=4, tilt=3.0), False),
        (measured(0.1, phase=3, tilt=10.0), True),
    ],
)
def test_the_base_every_other_phase_and_the_last_are_measured_once(progress, expected):
    config = RunConfig(evaluation=EvaluationConfig(every=2))
    assert loop_of(config).is_to_be_measured(progress, spent=0.0) == expected


@pytest.mark.parametrize(("spent", "expected"), [(0.29, False), (0.31, True), (1.0, True)])
def test_a_budget_is_measured_in_tenths_and_at_its_end(spent, expected):
    progress = measured(0.1, tilt=50.0, phase=4, measured_at=0.2)
    assert loop_of(RunConfig(budget="1h")).is_to_be_measured(progress, spent) == expected


@pytest.mark.parametrize(
    ("changes", "progress", "spent", "reason"),
    [
        ({}, measured(0.1, 0.2, 0.2, 0.1), 0.0, "held-out reward has not risen for 2 evaluations"),
        ({}, measured(0.1, 0.2, 0.2), 0.0, None),
        ({}, measured(0.1, tilt=10.0), 0.0, "reached the final tilt A = 10"),
        (ITERATING, measured(tilt=10.0, phase=9), 0.0, "finished 9 iterations"),
        ({"budget": "5m"}, measured(0.1, tilt=10.0), 0.9, None),
        ({"budget": "5m"}, measured(0.1, 0.1, 0.1), 1.0, "spent its budget of 5m"),
    ],
)
def test_a_run_says_why_it_ends(changes, progress, spent, reason):
    config = RunConfig(evaluation=EvaluationConfig(patience=2), **changes)
    assert loop_of(config).reason_to_stop(progress, spent) == reason


@pytest.mark.parametrize(
    ("numerator", "denominator", "expected"),
    [(0.0, 0.0, 1.0), (0.6, 0.8, 0.75), (-1.0, 1.0, 0.0), (9.0, 1.0, 1.5)],
)
def test_the_adaptive_control_is_a_clipped_ratio(numerator, denominator, expected):
    control = AdaptiveControl(numerator=numerator, denominator=denominator)
    assert math.isclose(control.value, expected)
