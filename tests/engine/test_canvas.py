"""Decoding where blocks are counted from a row's first token: a prompt may end inside a block."""

from __future__ import annotations

import pytest
import torch
from networks import EOS, MASK, asked
from safetensors.torch import load_file

import dtm
from dtm.engine import ORDERS, Decoder, generate
from dtm.models import Transformer, TransformerConfig
from dtm.models.routing import Experts
from dtm.random import stream
from dtm.records import Prompts

BLOCK, LENGTH = 4, 6
SETTINGS = [
    {"order": ORDERS["uniform"]()},
    {"order": ORDERS["sampled-confidence"](), "tokens_per_step": 2, "temperature": 0.5},
    {"order": ORDERS["uniform"](), "certainty": 0.6, "until_end": True},
]
LENGTHS = (3, 6, 4, 1)


def block_causal(shift: int = 0, experts: bool = False) -> Transformer:
    mixture = Experts(count=4, active=2, width=16, layers=(1,), shared=8) if experts else None
    shape = TransformerConfig(
        vocab_size=12, mask_id=MASK, eos_id=EOS, width=32, layers=2, heads=4, kv_heads=2, ffn=48, shift=shift,
        attention_block=BLOCK, block_origin="token", experts=mixture,
    )  # fmt: skip
    built = Transformer(shape, stream(0, "test"))
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.mul_(10 if parameter.dim() >= 2 else 1)
    return built.double().eval()


def greedy(model: Transformer, prompt: torch.Tensor, length: int) -> torch.Tensor:
    """Fill a canvas of whole blocks, block by block, the most certain token first, by whole passes."""
    block, mask = model.attention_block, model.mask_id
    total = -(-(len(prompt) + length) // block) * block
    canvas = torch.cat([prompt, torch.full((total - len(prompt),), mask)])
    for start in range(len(prompt) // block * block, total, block):
        while (canvas[start : start + block] == mask).any():
            logits = model.logits(canvas[None])[0]
            logits[:, mask] = -torch.inf
            if model.shift:  # the state before predicts; a row's first token has none
                logits = torch.cat([logits[:1], logits[:-1]])
            sure, token = logits.log_softmax(-1).max(-1)
            sure[canvas != mask] = -torch.inf
            sure[:start] = sure[start + block :] = -torch.inf
            canvas[sure.argmax()] = token[sure.argmax()]
    return canvas


GREEDY = Decoder(order=ORDERS["max-probability"](), block=BLOCK, temperature=0.0, cache="prefix")


@pytest.mark.parametrize("experts", [False, True])
@pytest.mark.parametrize("shift", [0, 1])
def test_decoding_is_that_of_a_plain_loop_over_the_canvas(shift, experts):
    model, prompts = block_causal(shift, experts), asked(*LENGTHS)
    done = generate(model, prompts, LENGTH, GREEDY)
    for row, length in enumerate(LENGTHS):
        expected = greedy(model, prompts.tokens[row, prompts.attention[row]], LENGTH)
        assert torch.equal(done.tokens[row, done.attention[row]], expected)
        assert done.is_completion[row].sum() == len(expected) - length


@pytest.mark.parametrize(("shift", "settings"), [(1, SETTINGS[0]), (0, SETTINGS[1]), (1, SETTINGS[2])])
def test_the_prefix_cache_changes_no_token(shift, settings):
    model, prompts = block_causal(shift), asked(*LENGTHS).repeat(2)
    plain, cached = (
        generate(model, prompts, LENGTH, Decoder(**settings, block=BLOCK, cache=cache), batch=batch)
        for cache, batch in (("none", 8), ("prefix", 3))
    )
    assert torch.equal(plain.tokens, cached.tokens)
    assert torch.equal(plain.revealed_at, cached.revealed_at)
    torch.testing.assert_close(plain.log_prob, cached.log_prob, atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["sdar", "sdar_moe", "llada2_moe", "fast_dllm_qwen"])
def test_reference_models_are_decoded_as_on_the_canvas_with_and_without_the_cache(shared_data, name):
    folder = shared_data / "golden" / f"{name}_tiny"
    if not folder.is_dir():
        pytest.skip(f"no reference files in {folder}")
    stored = load_file(folder / "golden.safetensors")
    block = int(stored["block_size"])
    model = dtm.load_model(folder, mask_id=int(stored["mask_token_id"]), attention="block", block=block)
    length = block + 1
    prompts = asked(block + 2, 3)
    for cache in ("none", "prefix"):
        decoder = Decoder(order=ORDERS["max-probability"](), block=block, temperature=0.0, cache=cache)
        done = generate(model, prompts, length, decoder)
        for row in range(2):
            expected = greedy(model, prompts.tokens[row, prompts.attention[row]], length)
            assert torch.equal(done.tokens[row, done.attention[row]], expected)


def test_rows_are_padded_by_whole_blocks_and_end_with_one():
    """Prompts of 3, 6 and 4 tokens with 6 more: 9, 12 and 10 tokens become 12 columns each."""
    done = generate(block_causal(), asked(3, 6, 4), LENGTH, GREEDY)
    assert done.tokens.shape == (3, 12)
    assert done.attention.all()
    assert done.is_completion.sum(1).tolist() == [9, 6, 8]
    assert done.written.shape == (3, 6)
    assert torch.equal(done.written[0], done.tokens[0, 3:9])
    short = generate(block_causal(), asked(1, 7), 2, GREEDY)
    assert short.attention.int().argmax(1).tolist() == [8, 0]
    assert (short.revealed_at[short.is_completion] >= 0).all()
    assert (short.revealed_at[~short.is_completion] == -1).all()


def test_more_padding_changes_no_token():
    model, prompts = block_causal(), asked(*LENGTHS)
    wide = Prompts(
        torch.nn.functional.pad(prompts.tokens, (3, 0)),
        torch.nn.functional.pad(prompts.attention, (3, 0)),
        prompts.views,
    )
    one, two = (generate(model, given, LENGTH, GREEDY) for given in (prompts, wide))
    assert torch.equal(one.tokens, two.tokens)


def test_the_doubled_pass_scores_rollouts_as_they_were_drawn():
    """One token per step: the last reveal of a block was drawn given all its others and the blocks before."""
    model = block_causal(shift=1)
    done = generate(model, asked(*LENGTHS), LENGTH, Decoder(block=BLOCK, cache="prefix"), seed=3)
    number = torch.arange(done.tokens.shape[1]) // BLOCK
    last = torch.zeros_like(done.is_completion)
    for row in range(len(done)):
        for block in set(number[done.is_completion[row]].tolist()):
            inside = done.is_completion[row] & (number == block)
            last[row, done.revealed_at[row].masked_fill(~inside, -1).argmax()] = True
    hidden = done.tokens.masked_fill(last, MASK)
    with torch.no_grad():
        found = model(hidden, done.attention, last, clean=done.tokens)
    drawn = found.gather(1, done.tokens[last][:, None]).squeeze(1)
    torch.testing.assert_close(drawn.float(), done.log_prob[last], atol=1e-5, rtol=0)
