"""Values of unfinished rows: one-shot and rollout estimates against enumeration, and their cost."""

from __future__ import annotations

import pytest
import torch

from dtm.engine import Decoder
from dtm.engine.generation import decode, masked_rows
from dtm.errors import ConfigError
from dtm.steering.sampler import Sampler
from dtm.steering.values import OneShot, Rollout, Unfinished, build_values, soft_value
from dtm.verify.claims.steering import judge
from dtm.verify.exact import number, random_world

A, ROWS = 2.0, 1500
WORLD = random_world(2, 4, seed=8)
DECODER = Decoder(block=2)


@pytest.fixture
def half():
    """Rows with one of two blocks finished, all equal, and the model."""
    model = WORLD.denoiser()
    canvas = masked_rows(torch.zeros(ROWS, 0, dtype=torch.long), 4, 1, model)
    decode(model, canvas, DECODER, seed=0, batch=ROWS, stop=1)
    canvas.tokens[:] = canvas.tokens[0]
    return canvas, Sampler(model, DECODER, judge(WORLD), 999)


def estimated(values, half) -> torch.Tensor:
    canvas, sampler = half
    return values(sampler, Unfinished(canvas, range(ROWS), range(ROWS), 0), A, 5).exp()


def near(found: torch.Tensor, expected: float) -> bool:
    return abs(float(found.mean()) - expected) < 4 * float(found.std()) / len(found) ** 0.5


def test_rollouts_estimate_the_value_without_bias(half):
    canvas, sampler = half
    exact = float(WORLD.given_state((A * WORLD.reward).exp())[number(canvas.tokens[0], 3)])
    found = estimated(Rollout(2), half)
    assert near(found, exact)
    assert sampler.effort.rewards == 2 * ROWS
    assert sampler.effort.forwards == 2 * ROWS * 2


def test_one_shot_fills_are_independent_given_the_state(half):
    """Their mean is that of the product of the two marginals, which is not the value."""
    canvas, sampler = half
    state = int(number(canvas.tokens[0], 3))
    table, weight = WORLD.posterior()[state], (A * WORLD.reward).exp()
    rest = [(i, j) for i in range(2) for j in range(2)]
    fills = torch.tensor([[*canvas.tokens[0, :2].tolist(), i, j] for i, j in rest])
    chance = torch.stack([table[2, i] * table[3, j] for i, j in rest])
    expected = float((chance * weight[number(fills, 2)]).sum())
    assert abs(expected - float(WORLD.given_state(weight)[state])) > 0.01
    assert near(estimated(OneShot(2), half), expected)
    assert sampler.effort.forwards == ROWS
    assert sampler.effort.rewards == 2 * ROWS


def test_greedy_takes_the_most_likely_tokens_once(half):
    canvas, sampler = half
    best = WORLD.posterior()[int(number(canvas.tokens[0], 3))].argmax(-1)
    best[:2] = canvas.tokens[0, :2]
    found = estimated(OneShot(4, greedy=True), half)
    torch.testing.assert_close(found, (A * WORLD.reward[number(best, 2)]).exp().expand(ROWS))
    assert sampler.effort.rewards == ROWS


@pytest.mark.parametrize("values", [OneShot(3), Rollout(2)])
def test_a_value_depends_on_its_row_and_not_on_the_rows_or_batches_beside_it(values, half):
    canvas, sampler = half
    every = values(sampler, Unfinished(canvas, range(ROWS), range(ROWS), 0), A, 5)
    small = Sampler(sampler.model, DECODER, sampler.judge, 7)
    some = values(small, Unfinished(canvas, [5, 70, 71], [5, 70, 71], 0), A, 5)
    torch.testing.assert_close(some, every[[5, 70, 71]])
    assert len(set(every.tolist())) > 1
    assert not torch.equal(every, values(sampler, Unfinished(canvas, range(ROWS), range(ROWS), 0), A, 6))


def test_fills_without_a_reward_are_left_out():
    nan = torch.nan
    found = soft_value(torch.tensor([[1.0, nan], [nan, nan], [900.0, 900.0]]), 2.0)
    torch.testing.assert_close(found, torch.tensor([2.0, 0.0, 1800.0], dtype=torch.float64))


def test_wrong_estimates_are_refused():
    with pytest.raises(ConfigError, match="Did you mean 'rollout'"):
        build_values("rollouts", 4)
    with pytest.raises(ConfigError, match="--draws must be at least 1"):
        build_values("one-shot", 0)
