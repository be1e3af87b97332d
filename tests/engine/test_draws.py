"""Drawing from logits: the law, the exclusion of the mask, scores and peaks; and that it can be compiled."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from dtm.engine import ORDERS, SampledConfidence
from dtm.engine.draws import draw_function, draw_tokens
from dtm.engine.noise import candidate_keys, exponential, row_keys, uniform
from dtm.random import stream
from dtm.verify.tabular import Tabular

VOCABULARY, MASK = 7, 4


def some_keys(rows: int) -> torch.Tensor:
    zero = torch.zeros(1, dtype=torch.long)
    return candidate_keys(row_keys(0, zero, zero), zero, rows)[0]


@pytest.mark.parametrize("name", ORDERS)
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_it_is_the_gumbel_rule_written_out(name, temperature):
    # A head may have columns to spare.
    logits, keys = 2 * torch.randn(50, VOCABULARY + 2, generator=stream(0, "logits")), some_keys(50)
    plain = logits[:, :VOCABULARY].clone()
    plain[:, MASK] = -torch.inf
    log_pi = plain.log_softmax(-1)
    gumbel = -exponential(keys, VOCABULARY, torch.float32).log()
    order = ORDERS[name]()
    drawn, log_prob, score, peak = draw_tokens(logits, keys, (VOCABULARY, MASK), temperature, order, True)
    assert torch.equal(drawn, (log_pi / temperature + gumbel if temperature else log_pi).argmax(-1))
    torch.testing.assert_close(log_prob, log_pi.gather(1, drawn[:, None])[:, 0])  # not tempered
    torch.testing.assert_close(score, order.score(log_pi, drawn, uniform(keys)))
    torch.testing.assert_close(peak, log_pi.exp().amax(-1))


def test_tokens_come_with_their_probabilities():
    logits = torch.tensor([[0.0, 1.0, -1.0, 0.5, 9.0, 0.0, 0.0]]).expand(40_000, -1)
    settings = (VOCABULARY, MASK), 1.0, SampledConfidence(), False
    drawn, *_ = draw_tokens(logits.clone(), some_keys(40_000), *settings)
    found = drawn.bincount(minlength=VOCABULARY) / 40_000
    expected = logits[0].masked_fill(torch.arange(VOCABULARY) == MASK, -torch.inf).softmax(-1)
    torch.testing.assert_close(found, expected, atol=0.01, rtol=0)
    assert found[MASK] == 0


TRACED = """
import torch
from dtm.engine import SampledConfidence
from dtm.engine.draws import draw_tokens
from dtm.engine.noise import candidate_keys, row_keys
from dtm.models import Transformer, TransformerConfig, transformer
from dtm.models.merging import for_decoding

traced = torch.compile(draw_tokens, backend="aot_eager", fullgraph=True)
for rows in (3, 8, 21):
    logits = torch.randn(rows, 9, generator=torch.Generator().manual_seed(rows))
    zero = torch.zeros(1, dtype=torch.long)
    keys = candidate_keys(row_keys(0, zero, zero), zero, rows)[0]
    settings = keys, (7, 4), 0.7, SampledConfidence(), True
    results = traced(logits.clone(), *settings), draw_tokens(logits.clone(), *settings)
    assert all(torch.equal(found, wanted) for found, wanted in zip(*results, strict=True))

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


def test_only_models_compiled_on_a_gpu_draw_with_the_compiled_function():
    model = Tabular(torch.zeros(9, 2, 2))
    assert draw_function(model, torch.device("cuda")) is draw_tokens
    model.compiled = True
    assert draw_function(model, torch.device("cpu")) is draw_tokens
    assert draw_function(model, torch.device("cuda")) is not draw_tokens
