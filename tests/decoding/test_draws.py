"""Drawing from logits: the law, the exclusion of the mask, scores and peaks; and that it can be compiled."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from dtm.decoding import ORDERS, SampledConfidence
from dtm.decoding.draws import look, look_for
from dtm.models import Tabular
from dtm.random import stream

VOCABULARY, MASK = 7, 4


def given(rows: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    noise = stream(0, "look")
    logits = 2 * torch.randn(rows, VOCABULARY + 2, generator=noise)  # a head may have columns to spare
    return (
        logits,
        torch.empty(rows, VOCABULARY).exponential_(generator=noise),
        torch.rand(rows, generator=noise),
    )


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_it_is_the_gumbel_rule_written_out(name, temperature):
    logits, noise, uniform = given(50)
    plain = logits[:, :VOCABULARY].clone()
    plain[:, MASK] = -torch.inf
    log_pi = plain.log_softmax(-1)
    gumbel = log_pi / temperature - noise.log() if temperature else log_pi
    order = ORDERS[name]()
    drawn, score, peak = look(
        logits, noise if temperature else None, uniform, (VOCABULARY, MASK), temperature, order, True
    )
    assert torch.equal(drawn, gumbel.argmax(-1))
    torch.testing.assert_close(score, order.score(log_pi, drawn, uniform))
    torch.testing.assert_close(peak, log_pi.exp().amax(-1))


def test_tokens_come_with_their_probabilities():
    logits = torch.tensor([[0.0, 1.0, -1.0, 0.5, 9.0, 0.0, 0.0]]).expand(40_000, -1)
    noise = torch.empty(logits.shape).exponential_(generator=stream(0, "law"))
    drawn, *_ = look(
        logits.clone(), noise, torch.zeros(40_000), (VOCABULARY, MASK), 1.0, SampledConfidence(), False
    )
    found = drawn.bincount(minlength=VOCABULARY) / 40_000
    expected = logits[0].masked_fill(torch.arange(VOCABULARY) == MASK, -torch.inf).softmax(-1)
    torch.testing.assert_close(found, expected, atol=0.01, rtol=0)
    assert found[MASK] == 0


TRACED = """
import torch
from dtm.decoding import SampledConfidence
from dtm.decoding.draws import look
from dtm.models import Transformer, TransformerConfig, transformer
from dtm.models.merging import for_decoding

traced = torch.compile(look, backend="aot_eager", fullgraph=True)
for rows in (3, 8, 21):
    noise = torch.Generator().manual_seed(rows)
    logits, uniform = torch.randn(rows, 9, generator=noise), torch.rand(rows, generator=noise)
    exponential = torch.empty(rows, 7).exponential_(generator=noise)
    settings = exponential, uniform, (7, 4), 0.7, SampledConfidence(), True
    for found, wanted in zip(traced(logits.clone(), *settings), look(logits.clone(), *settings), strict=True):
        assert torch.equal(found, wanted)

shape = TransformerConfig(vocab_size=9, mask_id=8, eos_id=0, width=32, layers=2, heads=2, ffn=48)
model = for_decoding(Transformer(shape, torch.Generator().manual_seed(0)).eval(), fp8=True)
tokens = torch.arange(8).repeat(2, 1)
with torch.no_grad():
    wanted = model.hidden(tokens)
    transformer.fused = lambda half: torch.compile(half, backend="aot_eager", fullgraph=True, dynamic=True)
    model.compile_blocks()
    torch.testing.assert_close(model.hidden(tokens), wanted)
    model.hidden(tokens[:1, :5])
print("whole")
"""


def test_what_is_compiled_on_a_gpu_can_be_traced_whole():
    """In a process of its own, for the annotations that are checked in tests cannot be traced."""
    done = subprocess.run([sys.executable, "-c", TRACED], capture_output=True, text=True, timeout=120)
    assert done.stdout == "whole\n", done.stderr


def test_only_models_compiled_on_a_gpu_draw_in_fused_passes():
    model = Tabular(torch.zeros(9, 2, 2))
    assert look_for(model, torch.device("cuda")) is look
    model.compiled = True
    assert look_for(model, torch.device("cpu")) is look
    assert look_for(model, torch.device("cuda")) is not look
