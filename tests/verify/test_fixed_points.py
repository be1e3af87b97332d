"""The claims on the newer methods fail when the code is wrong; and the oracles they are held against."""

from __future__ import annotations

import pytest
import torch

from dtm.engine import Decoder, Uniform
from dtm.masking import trace
from dtm.methods import agrpo, dmpo, espo, gdsd, just_grpo, surrogates
from dtm.verify import claims
from dtm.verify.claims.fixed_points import lambert_law
from dtm.verify.claims.trajectories import decoded, expected_reward
from dtm.verify.exact import decoder_law, random_world

WRONG = {
    "weights of coupled masks doubled": (surrogates, "by_sequence", "B1c"),
    "squares of single masks": (gdsd, "cross_square", "F1c"),
    "bounds of pairs halved": (gdsd, "pair_bounds", "F1a"),
    "importance weights of half the exponent": (dmpo, "group_weights", "F2a"),
    "step law that sums to two": (trace, "step_law", "F3b"),
    "trajectory weights doubled": (trace, "step_law", "B6"),
    "gain of ESPO doubled": (espo, "clipped", "F3c"),
    "JustGRPO's tokens doubled": (just_grpo, "clipped_tokens", "F3a"),
    "AGRPO's tokens doubled": (agrpo, "token_scores", "F3b"),
}


@pytest.mark.parametrize(("module", "name", "number"), WRONG.values(), ids=WRONG.keys())
def test_a_wrong_piece_fails_its_claim(module, name, number, monkeypatch):
    right = getattr(module, name)
    wrong = {
        "group_weights": lambda exponent, group: right(exponent / 2, group),
        "cross_square": lambda value: value.square().mean(1),
        "clipped_tokens": lambda *args, **kw: type(loss := right(*args, **kw))(2 * loss.value, loss.metrics),
    }
    monkeypatch.setattr(module, name, wrong.get(name, lambda *args: 2 * right(*args)))
    (check,) = claims.run_claims([number])
    assert not check.passed


def test_lamberts_law_is_the_minimiser_over_all_laws():
    """By gradient descent on the logits of a law."""
    world = random_world(3, 2, seed=0)
    target = 0.8 * (world.reward - (world.prob * world.reward).sum())
    logits = world.log_prob.clone().requires_grad_()
    optimiser = torch.optim.LBFGS([logits], max_iter=500, tolerance_grad=1e-13, tolerance_change=1e-16)

    def loss():
        optimiser.zero_grad()
        value = (world.prob * (logits.log_softmax(0) - world.log_prob - target).square()).sum()
        value.backward()
        return value

    for _ in range(5):
        optimiser.step(loss)
    found = logits.detach().softmax(0)
    torch.testing.assert_close(found, lambert_law(world.prob, target), atol=1e-7, rtol=0)


def test_the_expected_reward_is_that_of_the_enumerated_decoder():
    """E[r − E[r]] is 0, and the probabilities of the rollouts are the decoder's law."""
    world = random_world(3, 3, seed=1)
    table = world.posterior().clamp(min=1e-12)
    for block in (None, 1):
        _, credit = expected_reward(world, table, block)
        law = decoder_law(table, Decoder(order=Uniform(), block=block))
        mean = (law * world.reward).sum()
        by_sequence = credit.view(-1, len(law)).sum(0)
        torch.testing.assert_close(by_sequence, law * (world.reward - mean), atol=1e-9, rtol=0)
        assert len(decoded(world, block)) == len(credit)
