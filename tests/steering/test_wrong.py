"""Wrong versions of SMC: the claims must notice each of them."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
import torch

from dtm.engine.generation import masked_rows
from dtm.steering import smc
from dtm.steering.particles import Particles
from dtm.steering.smc import Sweep
from dtm.verify.claims import CLAIMS
from dtm.verify.claims.steering import wrong_values
from dtm.verify.exact import random_world

steer = sys.modules["dtm.steering.steer"]  # the package has a function of that name
CLAIM = {claim.number: claim for claim in CLAIMS}


def fails(number: str) -> bool:
    return not CLAIM[number].check().passed


def test_a_value_left_behind_at_a_resampling_is_noticed(monkeypatch):
    """The estimate that a particle was multiplied by must move with it, to be divided out."""
    take = Particles.take
    monkeypatch.setattr(
        Particles, "take", lambda self, rows: replace(take(self, rows), log_value=self.log_value)
    )
    assert fails("S1")


def test_weights_dropped_where_no_resampling_is_due_are_noticed(monkeypatch):
    resampled = Sweep._resampled

    def dropped(self, particles, *rest):
        found = resampled(self, particles, *rest)
        is_over = bool((particles.ended >= 0).all())
        return found if is_over else replace(found, log_weight=torch.zeros_like(found.log_weight))

    monkeypatch.setattr(Sweep, "_resampled", dropped)
    assert fails("S2")


def test_a_path_that_is_not_held_is_noticed(monkeypatch):
    run = Sweep.run
    monkeypatch.setattr(Sweep, "run", lambda self, *given: run(self, *given[:4]))
    assert fails("S4")


def test_a_held_path_is_its_own_ancestor_and_others_are_drawn():
    rows = masked_rows(torch.zeros(200, 0, dtype=torch.long), 2, 3, random_world(2, 2, seed=0).denoiser())
    particles = Particles.start(rows, 3)
    weights = torch.tensor([-2.0, 0.0, -1.0], dtype=torch.float64).expand(200, 3)
    particles = replace(particles, log_weight=weights, log_value=torch.arange(600.0).double())
    held, free = (
        Sweep(1.0, wrong_values, 1.0)._resampled(particles, 0, 5, is_conditional).log_value.view(200, 3)
        for is_conditional in (True, False)
    )
    first = torch.arange(0.0, 600.0, 3).double()
    assert torch.equal(held[:, 0], first)
    assert not torch.equal(free[:, 0], first)
    share = ((held[:, 1:] - first[:, None]) == 1).double().mean()
    assert abs(float(share) - float(weights[0].softmax(0)[1])) < 0.08


def test_an_answer_drawn_without_its_weight_is_noticed(monkeypatch):
    level = steer.multinomial
    monkeypatch.setattr(steer, "multinomial", lambda log_weight, u: level(torch.zeros_like(log_weight), u))
    assert fails("S5")


@pytest.mark.parametrize("wrong", [lambda ratio: -ratio, lambda ratio: 0 * ratio])
def test_a_proposal_that_is_not_corrected_is_noticed(monkeypatch, wrong):
    right = smc.log_ratio

    def ratio(*given):
        found, passes = right(*given)
        return wrong(found), passes

    monkeypatch.setattr(smc, "log_ratio", ratio)
    assert fails("S3")
