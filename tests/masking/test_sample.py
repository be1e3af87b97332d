"""The library's masking and loss give the numbers of the trainer's own."""

from __future__ import annotations

import torch

from dtm import losses
from dtm.losses import AdaptiveControl
from dtm.masking import MaskCount, sample
from dtm.random import stream
from dtm.records import Sequences


def test_sample_draws_what_the_masking_of_c_dtm_draws():
    tokens = torch.randint(0, 5, (6, 9), generator=stream(0, "tokens"))
    written = (torch.arange(9) >= 3).expand(6, 9)
    found = sample(tokens, written, 7, stream(0, "masks"), block=2)
    clean = Sequences(tokens, torch.ones_like(written), written)
    expected = MaskCount(2).states(clean, 7, stream(0, "masks"))
    assert torch.equal(found.tokens, expected.tokens)
    assert torch.equal(found.row_weight, expected.row_weight)


def positions(count: int = 12, vocab: int = 5):
    noise = stream(0, "logits")
    log_pi, log_pi_a = (torch.randn(count, vocab, generator=noise).log_softmax(-1) for _ in range(2))
    x1 = torch.randint(0, vocab, (count,), generator=noise)
    return log_pi, log_pi_a, x1, torch.randn(count, generator=noise)


def test_the_loss_of_a_constant_control_is_that_of_one_per_position():
    log_pi, log_pi_a, x1, log_weight = positions()
    each = losses.c_dtm_cross_entropy(log_pi, log_pi_a, x1, log_weight, torch.full((12,), 0.7))
    assert torch.equal(losses.c_dtm(log_pi, log_pi_a, x1, log_weight, 0.7), each)


def test_the_guard_drops_the_advantage_beyond_its_bound_alone():
    log_pi, log_pi_a, x1, log_weight = positions()
    free = losses.c_dtm(log_pi, log_pi_a, x1, log_weight, 1.0)
    guarded = losses.c_dtm(log_pi, log_pi_a, x1, log_weight, 1.0, bound=0.5)
    at_x1 = x1[:, None]
    log_ratio = (log_pi.gather(-1, at_x1) - log_pi_a.gather(-1, at_x1)).squeeze(-1)
    gain = log_weight.exp() - 1
    dropped = ((gain > 0) & (log_ratio > 0.5)) | ((gain < 0) & (log_ratio < -0.5))
    assert 0 < int(dropped.sum()) < 12
    assert torch.equal(guarded != free, dropped)
    distilled = -(log_pi_a.exp() * log_pi).sum(-1)
    torch.testing.assert_close(guarded[dropped], distilled[dropped])


def test_adaptive_control_observes_the_closed_form():
    log_pi, log_pi_a, x1, log_weight = positions()
    control, row_weight = AdaptiveControl(memory=0.0), torch.rand(12, generator=stream(1, "weights")) + 1
    control.observe(log_pi, log_pi_a, x1, log_weight, row_weight)
    numerator, denominator = losses.control_moments(log_pi.exp(), log_pi_a.exp(), x1, log_weight.exp())
    squared = row_weight.square()
    found = torch.tensor([control.numerator, control.denominator])
    torch.testing.assert_close(
        found, torch.stack([(squared * numerator).sum(), (squared * denominator).sum()])
    )
