"""Recorded passes: the same numbers as plain ones, and left aside where a replay would be wrong."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor

from dtm.models.policy import Policy
from dtm.models.shape import TransformerConfig
from dtm.models.transformer import Transformer
from dtm.random import stream

SHAPE = torch.Size((6, 10))


def model(device: str = "cpu", tied: bool = False) -> Transformer:
    config = TransformerConfig(
        vocab_size=20, mask_id=19, eos_id=18, width=32, layers=2, heads=2, ffn=48, tied=tied
    )
    return Transformer(config, stream(0, "weights")).to(device)


def tokens(seed: int, rows: int = SHAPE[0], device: str = "cpu") -> Tensor:
    return torch.randint(0, 20, (rows, SHAPE[1]), generator=stream(seed, "tokens")).to(device)


def gradients(net: Transformer) -> list[Tensor]:
    return [parameter.grad.clone() for parameter in net.parameters() if parameter.grad is not None]


@pytest.fixture
def replays(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The inputs of every replay. A CPU records no graphs, so here a replay is a pass that is counted."""
    seen: list[Tensor] = []

    def counted(trunk: torch.nn.Module, sample: tuple[Tensor]) -> object:
        assert sample[0].shape == SHAPE

        def replay(x: Tensor) -> tuple[Tensor, Tensor]:
            seen.append(x)
            recording, net.recording = net.recording, None
            try:
                return trunk(x)
            finally:
                net.recording = recording

        net: Transformer = trunk.trunk.__self__
        return replay

    monkeypatch.setattr(torch.cuda, "make_graphed_callables", counted)
    return seen


def test_the_weights_recorded_are_those_of_which_the_trunk_is_a_function(
    replays: list[Tensor], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A weight too many could not be differentiated, and one too few would never get a gradient."""
    net, seen = model(), list[set[int]]()
    counted = torch.cuda.make_graphed_callables
    monkeypatch.setattr(
        torch.cuda,
        "make_graphed_callables",
        lambda trunk, sample: seen.append({id(p) for p in trunk.parameters()}) or counted(trunk, sample),
    )
    net.record(SHAPE)
    x, mixed = net._trunk(tokens(0))
    (x.sum() + mixed.sum()).backward()
    assert seen == [{id(p) for p in net.parameters() if p.grad is not None}]


def test_only_the_recorded_shape_is_replayed(replays: list[Tensor]) -> None:
    net = model()
    net.record(SHAPE)
    with torch.no_grad():
        net.hidden(tokens(0))
        net.hidden(tokens(0, rows=5))
        net.hidden(tokens(0), torch.ones(SHAPE, dtype=torch.bool))
        net.hidden(tokens(0), cache=net.new_cache(*SHAPE))
    assert len(replays) == 1


def test_a_policy_is_recorded_once(replays: list[Tensor]) -> None:
    policy = Policy(model())
    policy.record(SHAPE)
    first = [policy.student.recording, policy.teacher.recording]
    policy.record(torch.Size((5, 10)))
    assert None not in first
    assert [policy.student.recording, policy.teacher.recording] == first


def test_a_second_pass_before_the_backward_pass_is_not_replayed(replays: list[Tensor]) -> None:
    net = model()
    net.record(SHAPE)
    first = net.hidden(tokens(0))
    second = net.hidden(tokens(1))
    assert len(replays) == 1
    (first.sum() + second.sum()).backward()
    net.zero_grad()
    net.hidden(tokens(2))
    assert len(replays) == 2


def test_passes_whose_gradients_are_added_up_are_not_replayed(replays: list[Tensor]) -> None:
    net = model()
    net.record(SHAPE)
    for seed in range(3):
        net.hidden(tokens(seed)).sum().backward()
    assert len(replays) == 1
    with torch.no_grad():
        net.hidden(tokens(0))
    assert len(replays) == 2


def test_a_copy_is_not_recorded(replays: list[Tensor]) -> None:
    net = model()
    net.record(SHAPE)
    assert copy.deepcopy(net).recording is None


@pytest.mark.gpu
@pytest.mark.parametrize(("compiled", "tied"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("at", [None, [3, 17, 40]])
def test_replays_give_the_same_states_and_gradients(compiled: bool, tied: bool, at: list[int] | None) -> None:
    """Also after the weights have moved, and when gradients of several passes are added up."""
    plain, recorded = model("cuda", tied), model("cuda", tied)
    where = None if at is None else torch.tensor(at, device="cuda")
    if compiled:
        plain.compile_blocks()
        recorded.compile_blocks()
    with torch.autocast("cuda", torch.bfloat16):
        recorded.record(SHAPE)
    for step in range(3):
        for net in (plain, recorded):
            with torch.autocast("cuda", torch.bfloat16):
                for part in range(step + 1):
                    states = net.hidden(tokens(10 * step + part, device="cuda"), at=where)
                    net.head(states.flatten(0, -2)).square().sum().backward()
        for a, b in zip(gradients(plain), gradients(recorded), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3 * float(a.abs().max()))
        for net in (plain, recorded):
            with torch.no_grad():
                for parameter in net.parameters():
                    if parameter.grad is not None:
                        parameter -= 1e-4 * parameter.grad
            net.zero_grad()
        with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
            both = [net.hidden(tokens(99, device="cuda"), at=where) for net in (plain, recorded)]
        torch.testing.assert_close(*both, rtol=1e-3, atol=1e-3)
