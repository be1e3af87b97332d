"""The head in parts: the same loss, metrics and gradients at any number of positions held together."""

from __future__ import annotations

import pytest
import torch

from dtm.loop.replay import Replay
from dtm.masking import MaskCount
from dtm.methods import CDTM
from dtm.methods.c_dtm import CDTMConfig
from dtm.models import Policy, Transformer, TransformerConfig
from dtm.random import stream
from dtm.records import Phase

VOCAB = 13


def setting(make_rollouts):
    rollouts = make_rollouts(torch.randn(10, generator=stream(0, "reward")).tolist(), [0, 1] * 5, width=8)
    shape = TransformerConfig(vocab_size=VOCAB, mask_id=12, eos_id=0, width=32, layers=2, heads=4, ffn=48)
    policy = Policy(Transformer(shape, stream(0, "test")))
    with torch.no_grad():
        for parameter in policy.student.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=stream(1, "student")))
    states = MaskCount(4).states(rollouts, 12, stream(0, "masks"))
    return policy, states, Replay(rollouts, 0.7).weights, Phase(0, 0.0, 0.7, 2.0, control=0.8)


def outcome(objective: CDTM, policy: Policy, *rest):
    policy.student.zero_grad()
    loss = objective.loss(policy, *rest)
    loss.value.backward()
    return loss, [parameter.grad.clone() for parameter in policy.student.parameters()]


@pytest.mark.parametrize("guard", [True, False])
@pytest.mark.parametrize("positions", [1, 3, 7, 1000])
def test_parts_add_up_to_the_loss_of_the_whole_and_its_gradients(positions, guard, make_rollouts):
    case = setting(make_rollouts)
    dense, gradients = outcome(CDTM(CDTMConfig(guard=guard)), *case)
    parts, others = outcome(CDTM(CDTMConfig(guard=guard), held=positions * VOCAB), *case)
    torch.testing.assert_close(parts.value, dense.value, atol=1e-5, rtol=1e-5)
    for name, value in dense.metrics.items():
        torch.testing.assert_close(parts.metrics[name], value, atol=1e-5, rtol=1e-5)
    for one, other in zip(gradients, others, strict=True):
        torch.testing.assert_close(other, one, atol=1e-5, rtol=1e-5)


def test_no_part_holds_more_logits_than_it_may(make_rollouts, monkeypatch):
    policy, states, weights, phase = setting(make_rollouts)
    sizes: list[int] = []
    head = Transformer.head

    def counted(self, rows):
        sizes.append(len(rows))
        return head(self, rows)

    monkeypatch.setattr(Transformer, "head", counted)
    CDTM(held=4 * VOCAB + 3).loss(policy, states, weights, phase).value.backward()
    assert max(sizes) == 4
    assert len(states.scored) > 8
    assert sum(sizes) <= 4 * len(states.scored)  # student and π_a, and both again in the backward pass
