"""The autoregressive sampler against the general loop: the same tokens for the same seed."""

from __future__ import annotations

import itertools

import pytest
import torch
from networks import EOS, MASK, asked

from dtm.engine import Decoder, at_end_token, autoregressive, generate
from dtm.engine.generation import decode, masked_rows
from dtm.models import Transformer, TransformerConfig
from dtm.random import stream
from dtm.records import Completions

LENGTH, LENGTHS = 12, (3, 7, 0, 5, 1, 7)


@pytest.fixture
def model() -> Transformer:
    """A network in float32 whose rows end early about as often as not."""
    shape = TransformerConfig(
        vocab_size=12, mask_id=MASK, eos_id=EOS, width=32, layers=2, heads=4, kv_heads=2, ffn=48, shift=1,
        attention_block=1,
    )  # fmt: skip
    built = Transformer(shape, stream(0, "test"))
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.mul_(10 if parameter.dim() == 2 else 1)
    return built.eval()


@pytest.fixture
def sizes(model) -> list[int]:
    """Rows of each pass, in order."""
    seen: list[int] = []
    model.blocks[0].attention_norm.register_forward_pre_hook(lambda _, inputs: seen.append(len(inputs[0])))
    return seen


def assert_equal(one: Completions, two: Completions) -> None:
    assert torch.equal(one.tokens, two.tokens)
    assert torch.equal(one.revealed_at, two.revealed_at)
    torch.testing.assert_close(one.log_prob, two.log_prob, atol=1e-4, rtol=0)


@pytest.mark.parametrize("checked", [1, 3, 16])
@pytest.mark.parametrize("batch", [7, 60])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("until_end", [False, True])
def test_it_writes_the_tokens_of_the_general_loop(model, checked, batch, temperature, until_end, monkeypatch):
    """Prompts of different lengths, one of them empty; batches that shrink while some rows go on."""
    monkeypatch.setattr(autoregressive, "CHECKED", checked)
    prompts, settings = asked(*LENGTHS).repeat(10), {"block": 1, "temperature": temperature}
    fast, whole = (
        generate(
            model, prompts, LENGTH, Decoder(cache=cache, until_end=until_end, **settings), seed=4, batch=n
        )
        for cache, n in (("prefix", batch), ("none", 60))
    )
    assert_equal(fast, whole)
    if until_end:
        # An `ended` of one's own takes the general loop, here with the same cache.
        decoder = Decoder(cache="prefix", **settings)
        ended = at_end_token(EOS)
        assert_equal(fast, generate(model, prompts, LENGTH, decoder, seed=4, batch=batch, ended=ended))
        has_ended = (fast.written == EOS).any(1)
        assert 6 < int(has_ended.sum()) < 54


@pytest.mark.parametrize("width", [0, 5])
def test_prompts_without_padding_need_no_mask(model, width):
    prompts = asked(*[width] * 9).tokens
    fast, whole = (
        generate(model, prompts, LENGTH, Decoder(block=1, cache=cache, until_end=True), seed=1, batch=4)
        for cache in ("prefix", "none")
    )
    assert_equal(fast, whole)


def test_a_part_of_the_rows_is_drawn_as_among_all(model):
    prompts, decoder = asked(*LENGTHS), Decoder(block=1, cache="prefix", until_end=True, temperature=0.8)
    whole = generate(model, prompts, LENGTH, decoder, seed=2, completions=3)
    some = [1, 4, 5, 16]
    assert_equal(
        generate(model, prompts, LENGTH, decoder, seed=2, completions=3, rows=some), whole.select(some)
    )
    assert len(generate(model, prompts, LENGTH, decoder, rows=[])) == 0


def test_a_few_tokens_at_a_time_equal_one_call(model):
    prompts, decoder = asked(*LENGTHS), Decoder(block=1, cache="prefix", until_end=True)
    expected = generate(model, prompts, LENGTH, decoder, seed=3, completions=4)
    canvas, steps = masked_rows(prompts, LENGTH, 4, model), 0
    for first, stop in ((0, 3), (3, 4), (4, None)):
        rows = (canvas.tokens == MASK).any(1).nonzero().flatten().tolist()
        steps += decode(model, canvas, decoder, seed=3, batch=5, rows=rows, first=first, stop=stop)
    assert_equal(canvas, expected)
    assert steps == int((expected.log_prob != 0).sum())


def test_a_batch_shrinks_by_a_quarter_or_more_to_multiples_of_a_sixteenth(model, sizes, monkeypatch):
    monkeypatch.setattr(autoregressive, "CHECKED", 2)
    decoder = Decoder(block=1, cache="prefix", until_end=True)
    done = generate(model, asked(*[5] * 64), 40, decoder, seed=0, batch=64)
    working = [int(((done.log_prob != 0)[:, 5 + step :]).any(1).sum()) for step in range(len(sizes))]
    assert len(set(sizes)) > 3
    assert all(size % 4 == 0 and size >= rows for size, rows in zip(sizes[1:], working[1:], strict=True))
    shrunk = [(one, two) for one, two in itertools.pairwise(sizes) if one != two]
    assert all(two <= 0.75 * one for one, two in shrunk)
    # At every other step the batch is at most a quarter and a grain larger than the rows at work.
    assert all(0.75 * sizes[step] <= working[step] + 4 for step in range(2, len(sizes), 2))


def test_no_pass_follows_the_end_of_all_rows(model, sizes, monkeypatch):
    monkeypatch.setattr(autoregressive, "CHECKED", 4)
    monkeypatch.setattr(model, "head", lambda rows: torch.eye(12)[torch.full((len(rows),), EOS)] * 50)
    decoder = Decoder(block=1, cache="prefix", until_end=True)
    done = generate(model, asked(4, 2, 4), 40, decoder)
    assert len(sizes) == 4
    assert (done.written == EOS).all()


def test_equal_prompts_share_the_first_pass(model, sizes):
    decoder = Decoder(block=1, cache="prefix")
    done = generate(model, asked(5, 3), LENGTH, decoder, completions=6)
    assert sizes == [2] + [12] * (LENGTH - 1)
    assert_equal(done, generate(model, asked(5, 3), LENGTH, Decoder(block=1), completions=6))


def test_it_can_be_stopped_before_any_step(model, sizes):
    calls = 0

    def stop() -> None:
        nonlocal calls
        calls += 1
        if calls == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generate(model, asked(3), LENGTH, Decoder(block=1, cache="prefix"), between=stop)
    assert len(sizes) == 4
