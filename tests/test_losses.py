"""Worked examples of one tilt, and the per-prompt baseline by enumeration."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from dtm import losses, tilts
from dtm.random import stream

LN2 = math.log(2)


def tensor(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_log_mean_exp_by_hand():
    assert float(tilts.log_mean_exp(tensor(0, LN2, 2 * LN2))) == pytest.approx(math.log(7 / 3))
    assert float(tilts.log_mean_exp(tensor(900, 900 + LN2))) == pytest.approx(900 + math.log(1.5))


def test_peer_mean_by_hand():
    """A group of one falls back on all other rows."""
    found = tilts.peer_mean(tensor(1, 2, 6, 10), torch.tensor([5, 5, 5, 9]))
    assert found.tolist() == pytest.approx([4, 3.5, 1.5, 3])


def test_peer_mean_of_one_row_alone_is_nothing():
    assert tilts.peer_mean(tensor(7), torch.tensor([0])).tolist() == [0]


def test_weights_by_hand():
    """w = e^{hr} = 2, 1, 4, 4 and Z = 11/4."""
    weights = tilts.weigh(tensor(1, 0, 2, 2), torch.tensor([0, 0, 1, 1]), LN2)
    z = 11 / 4
    assert weights.log_z == pytest.approx(math.log(z))
    assert weights.log_weight.exp().tolist() == pytest.approx([2 / z, 1 / z, 4 / z, 4 / z])
    assert weights.peers.tolist() == pytest.approx([1 / z, 2 / z, 4 / z, 4 / z])


def test_weights_with_a_baseline_by_hand():
    """b = 0, 1, 2, 2, so w = 2, ½, 1, 1 and Z = 9/8; peers are weighed with the row's own baseline."""
    reward, group = tensor(1, 0, 2, 2), torch.tensor([0, 0, 1, 1])
    weights = tilts.weigh(reward, group, LN2, tilts.peer_mean(reward, group))
    z = 9 / 8
    assert weights.log_z == pytest.approx(math.log(z))
    assert weights.log_weight.exp().tolist() == pytest.approx([2 / z, 0.5 / z, 1 / z, 1 / z])
    assert weights.peers.tolist() == pytest.approx([1 / z] * 4)


def test_a_baseline_of_each_row_divides_its_weight_and_that_of_its_peers():
    """w̄_i = e^{h(r_i − b_i)} / Z, and the peers of row i are weighed with b_i too."""
    reward, baseline, h = [0.3, -1.0, 2.0, 0.5], [0.9, 0.2, -0.4, 1.1], 1.7
    weights = tilts.weigh(tensor(*reward), torch.tensor([0, 0, 1, 1]), h, tensor(*baseline))
    z = sum(math.exp(h * (r - b)) for r, b in zip(reward, baseline, strict=True)) / 4
    own = [math.exp(h * (r - b)) / z for r, b in zip(reward, baseline, strict=True)]
    peers = [math.exp(h * (reward[i ^ 1] - baseline[i])) / z for i in range(4)]
    assert weights.log_weight.exp().tolist() == pytest.approx(own)
    assert weights.peers.tolist() == pytest.approx(peers)


def test_a_given_log_z_is_taken():
    weights = tilts.weigh(tensor(1, 3), torch.tensor([0, 0]), 2.0, log_z=0.5)
    assert weights.log_weight.tolist() == pytest.approx([1.5, 5.5])


@pytest.mark.parametrize("h", [0.3, 1.0, 4.0])
def test_the_leave_one_out_baseline_moves_no_minimiser(h):
    """E[w_1 f(x_1)] over all pairs of a three-outcome world is proportional to E[e^{hr} f]."""
    law, reward = tensor(0.5, 0.3, 0.2), tensor(-0.4, 0.2, 1.0)
    pairs = list(itertools.product(range(3), repeat=2))
    chance = torch.stack([law[i] * law[j] for i, j in pairs])
    earned = reward[torch.tensor(pairs)].flatten()
    group = torch.arange(len(pairs)).repeat_interleave(2)
    weights = tilts.weigh(earned, group, h, tilts.peer_mean(earned, group), log_z=0.0)
    first = weights.log_weight.exp()[::2]
    found = [
        sum(chance[row] * first[row] for row, (i, _) in enumerate(pairs) if i == outcome)
        for outcome in range(3)
    ]
    tilted = law * (h * reward).exp()
    ratio = torch.stack(found) / tilted
    torch.testing.assert_close(ratio, ratio[:1].expand(3), rtol=1e-12, atol=0)
    assert float(ratio[0]) == pytest.approx(float((law * (-h * reward).exp()).sum()))


def test_effective_sample_size_by_hand():
    """(1 + 1 + 2)² / (3 · 6)."""
    assert float(tilts.effective_sample_size(tensor(0, 0, LN2))) == pytest.approx(16 / 18)
    assert float(tilts.effective_sample_size(tensor(800, 800))) == pytest.approx(1)


def test_the_guard_refuses_only_what_leads_further_out():
    ratio, gain = tensor(3, 3, -3, -3, 1, 1, -1), tensor(1, -1, 1, -1, 1, -1, -1)
    allowed = losses.within_ratio_bound(ratio, gain, 2.0)
    assert allowed.tolist() == [False, True, True, False, True, True, True]


def test_moments_of_the_best_control_by_hand():
    """With ⟨π_a, π_θ⟩ = 0.31 and |π_a|² = 0.38: 2 (1 − 0.2 − 0.5 + 0.31) and 1 − 0.4 + 0.38."""
    pi, pi_a = torch.tensor([[0.5, 0.3, 0.2]]), torch.tensor([[0.2, 0.5, 0.3]])
    found = losses.control_moments(pi, pi_a, torch.tensor([0]), torch.tensor([2.0]))
    torch.testing.assert_close(torch.cat(found), torch.tensor([1.22, 0.98]))


def test_the_loss_by_hand():
    """c̄ CE(π_a ‖ π_θ) − (w̄ − c̄) log π_θ(x_1), with and without the advantage."""
    pi, pi_a = tensor(0.5, 0.25, 0.25)[None], tensor(0.125, 0.5, 0.375)[None]
    arguments = (pi.log(), pi_a.log(), torch.tensor([1]), tensor(3.0).log(), tensor(2.0))
    cross_entropy = 0.125 * LN2 + 0.875 * 2 * LN2
    assert losses.c_dtm_cross_entropy(*arguments).item() == pytest.approx(2 * cross_entropy + 2 * LN2)
    kept = losses.c_dtm_cross_entropy(*arguments, keep=torch.tensor([False])).item()
    assert kept == pytest.approx(2 * cross_entropy)


@pytest.mark.parametrize("control", [0.0, 0.5, 1.0])
def test_the_nats_gained_by_hand(control):
    """(w̄ − c̄) log π_θ/π_a at x_1, less c̄ KL(π_a ‖ π_θ)."""
    pi, pi_a, weight = [0.5, 0.25, 0.25], [0.25, 0.5, 0.25], 3.0
    divergence = sum(a * math.log(a / p) for a, p in zip(pi_a, pi, strict=True))
    wanted = (weight - control) * math.log(0.25 / 0.5) - control * divergence
    log_pi, log_pi_a = tensor(*pi).log()[None], tensor(*pi_a).log()[None]
    found = losses.gained_kl(log_pi, log_pi_a, torch.tensor([1]), tensor(weight).log(), control)
    assert found.item() == pytest.approx(wanted)


def test_an_advantage_is_the_weight_less_the_control_near_and_far():
    weight, control = tensor(2.0, 2.0, 2.0, 2.0, 0.1), tensor(2.001, 1.5, 0.0, 60.0, 3.0)
    assert losses.advantage(weight.log(), control).tolist() == pytest.approx((weight - control).tolist())


def test_the_adaptive_control_keeps_its_memory_of_the_past():
    """At memory 0.9: 0.9 · 0.1 · 3 + 0.1 · 1 over 0.9 · 0.1 · 4 + 0.1 · 10."""
    control = losses.AdaptiveControl(memory=0.9)
    control.update(3.0, 4.0)
    control.update(1.0, 10.0)
    assert control.value == pytest.approx((0.27 + 0.1) / (0.36 + 1.0))


# ── effective tilt ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("tilt", [-3.0, 0.0, 2.0, 15.0])
def test_effective_tilt_inverts_an_exact_tilt_of_each_prompt(tilt):
    reward = torch.rand(6 * 50, generator=stream(0, "reward"))
    group = torch.arange(6).repeat_interleave(50)
    weight = (tilt * reward.double()).view(6, 50).softmax(1)
    reached = float((weight * reward.view(6, 50)).sum(1).mean())
    assert tilts.effective_tilt(reward, group, reached) == pytest.approx(tilt, abs=1e-4)


def test_effective_tilt_is_infinite_past_the_best_rollouts():
    reward, group = torch.tensor([0.1, 0.5, 0.2, 0.3]), torch.tensor([0, 0, 1, 1])
    assert tilts.effective_tilt(reward, group, 0.41) == math.inf
    assert tilts.effective_tilt(reward, group, 0.39) < 1e4
    assert tilts.effective_tilt(reward, group, 0.14) == -math.inf
