"""Memory of sharded training in each of several processes, against the estimate."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from dtm.capacity.activations import activations
from dtm.capacity.memory import TrainingShape, estimate, gathered
from dtm.distributed import current
from dtm.models import Policy, Transformer, TransformerConfig
from dtm.random import stream
from ranks import each

SHAPE = TransformerConfig(
    vocab_size=400, mask_id=399, eos_id=0, width=64, layers=12, heads=4, ffn=160, kv_heads=2
)
RUN = TrainingShape(rows=2, length=32, scored=4, rollouts=0, weight_bytes=4, compute_bytes=4, padded=False)


def local(tensor: Tensor) -> int:
    """Bytes of this process's part of a tensor."""
    return int(getattr(tensor, "to_local", lambda: tensor)().nbytes)


def is_gathered(parameter: nn.Parameter) -> bool:
    return not hasattr(parameter, "to_local")


def gathered_bytes(models: Iterable[nn.Module]) -> int:
    """Bytes of the weights that are whole at this moment, and of their gradients."""
    whole = [each for model in models for each in model.parameters() if is_gathered(each)]
    return sum(each.nbytes + (0 if each.grad is None else each.grad.nbytes) for each in whole)


def measured(shards: int) -> dict[str, int]:
    """One update of sharded weights in this process: bytes of its parts."""
    assert current().size >= shards
    policy = Policy(Transformer(SHAPE, stream(0, "test")), shards=shards)
    optimizer = torch.optim.AdamW(policy.trained())
    tokens = torch.zeros(RUN.rows, RUN.length, dtype=torch.long)
    scored = torch.arange(RUN.length).expand(RUN.rows, -1) % (RUN.length // RUN.scored) == 0
    models, most = (policy.student, policy.teacher), 0
    weights, copies = (sum(map(local, model.parameters())) for model in models)
    kept: dict[int, int] = {}

    def look() -> None:
        nonlocal most
        most = max(most, gathered_bytes(models))

    def look_twice(block: nn.Module, arguments: object, output: Tensor) -> None:
        look()
        if output.requires_grad:
            output.register_hook(lambda gradient: look())  # the head has its gradient by then

    def pack(value: Tensor) -> Tensor:
        own = {p.untyped_storage().data_ptr() for p in policy.student.parameters() if is_gathered(p)}
        storage = value.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return value

    for model in models:
        for block in model.blocks:
            block.register_forward_hook(look_twice, prepend=True)  # before its weights are sharded again
    policy.student.train()
    with torch.no_grad():
        policy.teacher(tokens, None, scored, head=False)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
        rows = policy.student(tokens, None, scored, head=False)
    policy.student.head(rows).square().mean().backward()
    gradients = sum(local(p.grad) for p in policy.trained() if p.grad is not None)
    optimizer.step()
    moments = [value for state in optimizer.state.values() for value in state.values() if value.dim() > 0]
    return {
        "weights": weights,
        "adapters": copies,
        "optimizer": gradients + sum(map(local, moments)),
        "gathered": most,
        "saved": sum(kept.values()),
    }


@pytest.mark.parametrize(("size", "shards"), [(2, 2), (4, 4), (4, 2)])
def test_each_process_holds_what_is_estimated(size, shards):
    expected = estimate(SHAPE, replace(RUN, shards=shards))
    for found in each(size, measured, shards):
        for part in ("weights", "adapters", "optimizer"):
            assert found[part] == pytest.approx(getattr(expected, part), rel=0.01), part
        assert found["saved"] == pytest.approx(activations(SHAPE, RUN), rel=0.05)
        # Blocks that are gathered ahead, and the gradient of one, cannot be seen from outside.
        assert 0.5 * gathered(SHAPE, 4) < found["gathered"] <= gathered(SHAPE, 4)
        assert sum(found.values()) == pytest.approx(expected.total, rel=0.1)
