"""Operations counted from the shape are those that torch counts as it runs."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from dtm.models import Transformer, TransformerConfig
from dtm.models.flops import forward_flops, model_flops
from dtm.models.tabular import Tabular


@pytest.mark.parametrize("fields", [{}, {"kv_heads": 1}, {"layers": 3, "ffn": 40}, {"embedding_size": 16}])
def test_a_forward_pass_and_a_backward_pass_of_twice_as_much(fields):
    shape = TransformerConfig(
        **{
            "vocab_size": 11,
            "mask_id": 10,
            "eos_id": 0,
            "width": 16,
            "layers": 2,
            "heads": 2,
            "ffn": 24,
            **fields,
        }
    )
    model = Transformer(shape, torch.Generator().manual_seed(0))
    where = torch.zeros(3, 7, dtype=torch.bool)
    where[:, 2:4] = True
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as forward:
        log_pi = model(torch.zeros(3, 7, dtype=torch.long), None, where)
    with FlopCounterMode(display=False) as backward:
        log_pi.sum().backward()
    assert forward_flops(shape, rows=3, length=7, scored=6) == forward.get_total_flops()
    assert model_flops(model, 3, 7, 6) == forward.get_total_flops()
    assert backward.get_total_flops() == 2 * forward.get_total_flops()


def test_a_model_of_unknown_shape_counts_two_for_each_weight_and_token():
    assert model_flops(Tabular(torch.zeros(9, 2, 2)), rows=5, length=2, scored=3) == 2 * 36 * 10
