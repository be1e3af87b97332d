"""Counted operations against torch's own counter, and against each other."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from dtm.capacity.flops import adapter_flops, rollout_flops, update_flops
from dtm.engine import Decoder, MaxProbability, generate
from dtm.models import LoRA, Transformer, TransformerConfig
from dtm.models.policy import Policy
from dtm.random import stream
from dtm.records import Prompts
from dtm.verify.tabular import Tabular

SHAPE = TransformerConfig(vocab_size=40, mask_id=39, eos_id=0, width=32, layers=2, heads=4, ffn=64)
PROMPT, COMPLETION, BLOCK = 5, 12, 4


def counted(work) -> int:
    """Operations, with attention as plain products: the counter does not know the CPU's fused kernel."""
    with FlopCounterMode(display=False) as counter, torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        work()
    return counter.get_total_flops()


def test_a_pass_takes_what_torch_counts():
    model, tokens = Transformer(SHAPE, stream(0, "test")), torch.zeros(3, 7, dtype=torch.long)
    where = torch.arange(3 * 7)[:9]
    assert counted(lambda: model(tokens, None, where)) == 3 * SHAPE.flops(7, 7, 3)


@pytest.mark.parametrize("refresh", [None, 1, 2, 9])
@pytest.mark.parametrize("together", [1, 2])
def test_a_rollout_takes_what_torch_counts(refresh, together):
    model = Transformer(SHAPE, stream(0, "test")).eval()
    tokens = torch.ones(2, PROMPT, dtype=torch.long)
    tokens[1, 0] += 2 - together
    prompts = Prompts(tokens, tokens.bool(), [None] * 2)
    cache = "none" if refresh is None else "block"
    decoder = Decoder(
        order=MaxProbability(), block=BLOCK, tokens_per_step=2, cache=cache, refresh=refresh or 1
    )
    found = counted(lambda: generate(model, prompts, COMPLETION, decoder, batch=2))
    assert found == 2 * rollout_flops(SHAPE, PROMPT, COMPLETION, BLOCK, 2, refresh, together)


def test_an_update_takes_a_pass_more_where_blocks_are_recomputed_and_weights_are_trained():
    lora, blocks = LoRA(rank=2), SHAPE.flops(9, 9, 2) - 2 * 2 * SHAPE.rows * SHAPE.width
    frozen, whole = update_flops(SHAPE, 9, 2, lora, 0), update_flops(SHAPE, 9, 2, None, 0)
    assert whole == 4 * SHAPE.flops(9, 9, 2)
    assert update_flops(SHAPE, 9, 2, None, 0.5) == whole + blocks / 2
    assert 3 * SHAPE.flops(9, 9, 2) < frozen < whole
    assert update_flops(SHAPE, 9, 2, lora, 0, merged=True) == frozen - adapter_flops(SHAPE, lora, 9, 2)


def test_adapters_add_what_torch_counts():
    model, tokens, at = (
        Transformer(SHAPE, stream(0, "test")),
        torch.zeros(3, 7, dtype=torch.long),
        torch.arange(6),
    )
    lora = LoRA(rank=2)
    plain = counted(lambda: model(tokens, None, at))
    adapted = Policy(model, lora=lora).student
    assert counted(lambda: adapted(tokens, None, at)) - plain == adapter_flops(SHAPE, lora, 21, 6)


def test_rows_at_different_blocks_take_what_torch_counts():
    """Some rows of a batch are due for a pass over all of them, whose states nobody asks for."""
    model = Transformer(SHAPE, stream(0, "test")).eval()
    told = []
    model.on_pass = lambda _, computed, attended, scored, __: told.append(
        model.flops(computed, attended, scored)
    )
    tokens = torch.ones(9, PROMPT, dtype=torch.long)
    prompts = Prompts(tokens, tokens.bool(), [None] * 9)
    decoder = Decoder(order=MaxProbability(), block=BLOCK, tokens_per_step=2, cache="block", refresh=2)

    def ended(rows, completions, written):
        return [count >= BLOCK * (1 + row % 3) for row, count in zip(rows, written, strict=True)]

    found = counted(lambda: generate(model, prompts, COMPLETION, decoder, batch=4, ended=ended))
    assert found == sum(told)


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
    assert shape.flops(21, 7, 6) == forward.get_total_flops()
    assert model.flops(21, 7, 6) == forward.get_total_flops()
    assert backward.get_total_flops() == 2 * forward.get_total_flops()


def test_a_model_of_unknown_shape_counts_two_for_each_weight_and_token():
    assert Tabular(torch.zeros(9, 2, 2)).flops(10, 2, 3) == 2 * 36 * 10
