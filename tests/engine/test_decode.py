"""Decoding block by block gives the tokens of one call, for every attention and with an exact cache."""

from __future__ import annotations

import pytest
import torch
from networks import EOS, LENGTH, MASK, asked, network

from dtm.engine import Decoder, MaxProbability, SampledConfidence, generate
from dtm.engine.generation import decode, masked_rows
from dtm.errors import ConfigError
from dtm.models import Transformer, TransformerConfig
from dtm.random import stream

BLOCK = 4


def block_causal(origin: str, shift: int) -> Transformer:
    shape = TransformerConfig(
        vocab_size=12, mask_id=MASK, eos_id=EOS, width=32, layers=2, heads=4, kv_heads=2, ffn=48, shift=shift,
        attention_block=BLOCK, block_origin=origin,
    )  # fmt: skip
    built = Transformer(shape, stream(0, "test"))
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.mul_(10 if parameter.dim() == 2 else 1)
    return built.double().eval()


MODELS = {
    "full": lambda: network("llada").double(),
    "shifted": lambda: network("dream").double(),
    "block-causal": lambda: block_causal("column", 0),
    "from the first token": lambda: block_causal("token", 1),
}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize(
    "settings",
    [
        {"order": MaxProbability(), "cache": "prefix"},
        {"order": SampledConfidence(), "tokens_per_step": 2, "until_end": True, "cache": "prefix"},
        {"certainty": 0.6},
    ],
)
def test_block_by_block_equals_one_call(kind, settings):
    """Prompts of several widths; rows that have ended early are left out of later blocks."""
    model, prompts, decoder = MODELS[kind](), asked(3, 7, 5, 1), Decoder(**settings, block=BLOCK)
    expected = generate(model, prompts, LENGTH, decoder, seed=3, completions=2)
    canvas, passes, block = masked_rows(prompts, LENGTH, 2, model), 0, 0
    while rows := (canvas.tokens == MASK).any(1).nonzero().flatten().tolist():
        passes += decode(model, canvas, decoder, seed=3, batch=3, rows=rows, first=block, stop=block + 1)
        block += 1
    assert block > 1
    assert torch.equal(canvas.tokens, expected.tokens)
    assert torch.equal(canvas.revealed_at, expected.revealed_at)
    torch.testing.assert_close(canvas.log_prob, expected.log_prob, atol=1e-5, rtol=0)
    early = (expected.revealed_at >= 0) & (expected.log_prob == 0) & (expected.tokens == EOS)
    taken = expected.revealed_at.masked_fill(early, -1).amax(1) + 1
    assert passes == int(taken.sum())


def test_a_cache_over_several_blocks_cannot_be_taken_up_again():
    model, prompts = network("llada"), asked(3)
    decoder = Decoder(block=BLOCK, cache="block", refresh=2)
    canvas = masked_rows(prompts, LENGTH, 1, model)
    decode(model, canvas, decoder, seed=0, batch=1, stop=1)
    with pytest.raises(ConfigError, match=r"decoding\.refresh"):
        decode(model, canvas, decoder, seed=0, batch=1, first=1, stop=2)
