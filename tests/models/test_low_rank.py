"""Adapted layers: the same numbers and gradients as one by one, in the precision of what they adapt."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dtm.models.low_rank import Adapted, projections
from dtm.random import seeded, stream


def adapted(
    out: int, rank: int, scale: float, seed: int, dtype=torch.float64, dropout: float = 0.0
) -> Adapted:
    base = nn.Linear(6, out, dtype=dtype).requires_grad_(False)
    layer = Adapted(base, rank, scale, dropout)
    for number, weight in enumerate((base.weight, base.bias, layer.lora_A.weight, layer.lora_B.weight)):
        weight.data.normal_(generator=stream(seed, "weights", number))
    return layer


def rows() -> Tensor:
    x = torch.randn(3, 5, 6, generator=stream(0, "x"), dtype=torch.float64)
    return x.requires_grad_()


def one_by_one(layer: Adapted, x: Tensor) -> Tensor:
    update = layer.scale * layer.lora_B.weight @ layer.lora_A.weight
    return layer.base_layer(x) + F.linear(x, update)


def test_several_together_are_each_by_itself_with_their_gradients():
    layers = [adapted(4, 2, 0.5, 1), nn.Linear(6, 3, dtype=torch.float64), adapted(7, 3, 2.0, 2)]
    x = rows()
    together = projections(x, layers)
    apart = [one_by_one(layer, x) if isinstance(layer, Adapted) else layer(x) for layer in layers]
    weights = [x, *(p for layer in layers for p in layer.parameters() if p.requires_grad)]
    for one, other in zip(together, apart, strict=True):
        torch.testing.assert_close(one, other)
    found = torch.autograd.grad(sum(y.square().sum() for y in together), weights)
    wanted = torch.autograd.grad(sum(y.square().sum() for y in apart), weights)
    assert len(found) == 7
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)


def test_a_new_update_is_nothing_and_draws_nothing():
    assert Adapted(nn.Linear(6, 4, device="meta"), 2, 1.0, 0.0).lora_A.weight.device.type == "meta"
    base, state = nn.Linear(6, 4), torch.get_rng_state()
    layer = Adapted(base, 2, 1.0, 0.0)
    assert torch.equal(torch.get_rng_state(), state)
    assert not any(weight.any() for weight in (layer.lora_A.weight, layer.lora_B.weight))


@pytest.mark.parametrize("autocast", [False, True])
def test_updates_are_kept_in_float32_and_answered_in_the_precision_of_the_base(autocast):
    layer = adapted(4, 2, 0.5, 1, torch.bfloat16)
    assert {layer.lora_A.weight.dtype, layer.lora_B.weight.dtype} == {torch.float32}
    x = rows().detach().bfloat16()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        y = layer(x)
    assert y.dtype == torch.bfloat16
    wanted = F.linear(x.float(), layer.base_layer.weight.float(), layer.base_layer.bias.float())
    wanted += 0.5 * F.linear(F.linear(x.float(), layer.lora_A.weight), layer.lora_B.weight)
    torch.testing.assert_close(y.float(), wanted, atol=0.1, rtol=0.02)


def test_siblings_drop_out_the_same_part_of_their_adapters_input_in_training_alone():
    one, other = adapted(4, 2, 1.0, 1, dropout=0.5), adapted(4, 2, 1.0, 1, dropout=0.5)
    x = rows()
    with seeded(0, "dropout"):
        first, second = projections(x, [one, other])
    assert torch.equal(first, second)  # they have the same weights
    with seeded(0, "dropout"):
        seen = F.dropout(x, 0.5)
    update = F.linear(F.linear(seen, one.lora_A.weight), one.lora_B.weight)
    torch.testing.assert_close(first, one.base_layer(x) + update)
    one.eval()
    torch.testing.assert_close(one(x), one_by_one(one, x))


COUNTED = """
import functools
import torch
from torch._dynamo.utils import counters
from dtm.models import Transformer, TransformerConfig, transformer
from dtm.models.adapters import LoRA, adapted

kinds = []
for layers in (2, 6):
    torch._dynamo.reset()
    counters.clear()
    compiled = functools.cache(functools.partial(torch.compile, backend="eager", dynamic=True))
    transformer.fused = compiled
    shape = TransformerConfig(vocab_size=9, mask_id=8, eos_id=0, width=16, layers=layers, heads=2, ffn=24)
    base = Transformer(shape, torch.Generator().manual_seed(0))
    student = adapted(base, LoRA(rank=2, targets=("q", "v", "up")), torch.Generator().manual_seed(0))
    student.compile_blocks()
    student.hidden(torch.arange(8).repeat(2, 1))
    kinds.append(counters["stats"]["unique_graphs"])
print(*kinds)
"""


def test_a_compiler_prepares_all_blocks_at_once():
    """In a process of its own, for the annotations that are checked in tests cannot be traced."""
    done = subprocess.run([sys.executable, "-c", COUNTED], capture_output=True, text=True, timeout=120)
    few, many = map(int, done.stdout.split() or pytest.fail(done.stderr))
    assert 0 < few == many
