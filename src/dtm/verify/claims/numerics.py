"""Claims on floating point and on the choice of the step h."""

from __future__ import annotations

import itertools
import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dtm import losses, tilts
from dtm.methods.control_variates import mean, one
from dtm.random import stream
from dtm.records import MaskedStates, Phase
from dtm.verify.claims.check import claim

ROWS, VOCAB, GROUP = 600, 8, 6


def _rewards(seed: int) -> Float[Tensor, " N"]:
    """Return rewards in float32, whose float64 copies are the same numbers."""
    return torch.rand(ROWS, generator=stream(seed, "rewards"))


def _positions() -> tuple[Float[Tensor, "N V"], Float[Tensor, "N V"], Int[Tensor, " N"]]:
    """Return log π_θ, log π_a and x_1 of one position per row."""
    generator = stream(1, "logits")
    log_pi, log_pi_a = torch.randn(2, ROWS, VOCAB, generator=generator).log_softmax(-1)
    return log_pi, log_pi_a, torch.randint(VOCAB, (ROWS,), generator=generator)


def _production(h: float, control: str) -> Float[Tensor, " N"]:
    """Compute the loss of every row in float32, with `weigh` and `c_dtm_cross_entropy`."""
    weights = tilts.weigh(_rewards(0), torch.arange(ROWS) // GROUP, h)
    unit = torch.ones_like(weights.peers)
    c = {"mean": unit, "one": unit * math.exp(-weights.log_z), "loo": weights.peers}[control]
    return losses.c_dtm_cross_entropy(*_positions(), weights.log_weight, c)


def _reference(h: float, control: str) -> Float[Tensor, " N"]:
    """Compute the loss in float64 from the target w̄ T_c = c̄ π_a + (w̄ − c̄) 1{x_1}."""
    tilt = h * _rewards(0).double()
    weight = (tilt - tilt.logsumexp(0) + math.log(ROWS)).exp()
    groups = weight.view(-1, GROUP)
    others = (groups[:, None, :] * ~torch.eye(GROUP).bool()).sum(-1).flatten() / (GROUP - 1)
    z = math.exp(float(tilt.logsumexp(0)) - math.log(ROWS))
    c = {"mean": torch.ones_like(weight), "one": torch.ones_like(weight) / z, "loo": others}[control]
    log_pi, log_pi_a, x1 = _positions()
    hit = torch.nn.functional.one_hot(x1, VOCAB)
    target = c[:, None] * log_pi_a.double().exp() + (weight - c)[:, None] * hit
    return -(target * log_pi.double()).sum(-1)


def _relative(single: Tensor, double: Tensor) -> float:
    """Return the largest error relative to the largest value; inf if a value is not finite."""
    if not bool(torch.isfinite(single).all()):
        return math.inf
    return float((single.double() - double).abs().max() / double.abs().max())


@claim("13a", "h·r up to 500 in float32: the loss is finite and that of float64, relative", 1e-5)
def large_tilts_stay_finite() -> float:
    """Return the largest relative error, for c = 1, c = mean and the leave-one-out mean of groups of six."""
    grid = itertools.product((5.0, 50.0, 80.0, 200.0, 500.0), ("one", "mean", "loo"))
    return max(_relative(_production(h, control), _reference(h, control)) for h, control in grid)


@claim("13b", "h = 1e-4 in float32: w̄ − c̄ is that of float64, relative", 1e-5)
def small_tilts_keep_their_digits() -> float:
    """Return the largest relative error, for c = mean (c̄ = 1) and the paper's c = 1 (c̄ = 1/Z)."""
    reward, h, deviations = _rewards(2), 1e-4, []
    weights = tilts.weigh(reward, torch.arange(ROWS), h)
    # e^{hr} − 1 and its mean, which need no logarithm.
    rise = torch.expm1(h * reward.double())
    blank = torch.zeros(ROWS, 1, dtype=torch.long)
    ones = torch.ones(ROWS)
    states = MaskedStates(
        blank, blank, blank == 0, blank == 0, ones, ones.long(), 1, ROWS, torch.tensor(ROWS)
    )
    phase = Phase(index=0, tilt=0.0, step=h, reward_range=1.0)
    for control, exact in ((mean, rise - rise.mean()), (one, rise)):
        gain = losses.advantage(weights.log_weight, control(states, weights, phase))
        deviations.append(_relative(gain, exact / (1 + rise.mean())))
    return max(deviations)


@claim("16a", "`step_for_ess` returns the h whose effective sample size is the target", 1e-3)
def step_hits_the_target() -> float:
    """Return the largest error of the ESS, for dense, maze-like and 0/1 rewards, targets of 0.5 to 0.9."""
    dense = _rewards(3).double()
    rewards = [dense, torch.where(dense < 0.5, -0.4, dense), (dense < 0.2).double(), 1000 * dense]
    deviations = []
    for reward, target in itertools.product(rewards, (0.5, 0.7, 0.9)):
        h = tilts.step_for_ess(reward, target, cap=1e3)
        deviations.append(abs(float(tilts.effective_sample_size(h * reward)) - target))
    return max(deviations)


@claim("16b", "it returns the cap on equal rewards, and on 0/1 rewards that succeed often enough", 0.0)
def step_returns_the_cap() -> float:
    """Return the largest error of the cap, for rewards whose ESS never falls to the target."""
    constant = torch.full((100,), 0.3)
    often = (torch.arange(100) < 80).float()
    return max(abs(tilts.step_for_ess(reward, 0.7, cap=2.5) - 2.5) for reward in (constant, often))


@claim("16c", "the last phase lands on A: Σ h − A", 1e-9)
def ladder_lands_on_the_final_tilt() -> float:
    """Return the largest error of Σ h, with steps that do not divide A."""
    deviations = []
    for final, h in [(10.0, 2.5), (10.0, 3.0), (1.0, 0.1), (7.3, 0.37)]:
        a = 0.0
        for _ in range(1000):
            if a >= final:
                break
            a += tilts.next_step(a, final, h)
        deviations.append(abs(a - final))
    return max(deviations)
