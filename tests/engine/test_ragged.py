"""Rows that come and go, and kept keys and values, against one row at a time decoded by hand."""

from __future__ import annotations

import itertools

import pytest
import torch

from dtm.engine import ORDERS, Decoder, decode, decode_all, decode_rows
from dtm.engine.noise import candidate_keys, exponential, row_keys, uniform
from dtm.engine.ragged import at_end_token
from dtm.engine.sampler import quotas
from dtm.engine.spans import Spans
from dtm.errors import ConfigError
from dtm.models import Transformer, TransformerConfig
from dtm.random import stream
from dtm.records import Prompts
from dtm.verify.tabular import Tabular

MASK, EOS, LENGTH = 11, 0, 10
FAMILIES = {
    "llada": {},
    "dream": {"shift": 1, "qkv_bias": True, "kv_heads": 2},
}


def network(family: str, layers: int = 2) -> Transformer:
    shape = TransformerConfig(
        vocab_size=12,
        mask_id=MASK,
        eos_id=EOS,
        width=32,
        layers=layers,
        heads=4,
        ffn=48,
        family=family,
        **FAMILIES[family],
    )
    built = Transformer(shape, stream(0, "test"))
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.mul_(10 if parameter.dim() == 2 else 1)
    return built.eval()


def asked(*lengths: int) -> Prompts:
    """Prompts of different lengths, padded on the left."""
    width = max(lengths)
    tokens = torch.randint(1, MASK, (len(lengths), width), generator=stream(0, "prompts"))
    attention = torch.arange(width) >= width - torch.tensor(lengths)[:, None]
    return Prompts(tokens.masked_fill(~attention, 0), attention, [None] * len(lengths))


LENGTHS = (3, 7, 5, 1, 7)


def alone(prompts: Prompts, row: int) -> torch.Tensor:
    """A prompt without its padding."""
    return prompts.tokens[row][prompts.attention[row]]


@torch.no_grad()
def by_hand(model: Transformer, prompt: torch.Tensor, row: int, decoder: Decoder, seed: int) -> list[int]:
    """The plain reference: one row, one pass over all of it for each step, positions one by one."""
    size = decoder.block or LENGTH
    tokens, first = torch.cat([prompt, torch.full((LENGTH,), MASK)]), len(prompt)
    for block, start in enumerate(range(0, LENGTH, size)):
        stop = min(start + size, LENGTH)
        for step, share in enumerate(quotas(stop - start, decoder.tokens_per_step)):
            masked = [i for i in range(first + start, first + stop) if tokens[i] == MASK]
            if not masked:
                break
            log_pi = model(tokens[None], None, torch.tensor(masked))
            count = len(masked)
            keys = candidate_keys(row_keys(seed, [(row, block)], torch.device("cpu")), step, count)[0]
            ranks = uniform(keys)
            if not decoder.order.reads_posterior and decoder.certainty is None:
                kept = ranks.argsort(descending=True)[:share].tolist()
                masked, log_pi, count, keys = [masked[i] for i in kept], log_pi[kept], len(kept), keys[kept]
            gumbel = -exponential(keys, log_pi.shape[1], log_pi.dtype).log()
            drawn = (log_pi if decoder.temperature == 0 else log_pi / decoder.temperature + gumbel).argmax(-1)
            if not decoder.order.reads_posterior and decoder.certainty is None:
                chosen = set(range(count))
            else:
                score = decoder.order.score(log_pi, drawn, ranks)
                chosen = set(score.argsort(descending=True)[:share].tolist())
                if decoder.certainty is not None:
                    chosen |= {i for i in range(count) if log_pi[i].max().exp() >= decoder.certainty}
            for i in chosen:
                tokens[masked[i]] = drawn[i]
    return tokens[first:].tolist()


class Wavering:
    """An order that reads both the posterior and the noise, as one of your own may."""

    reads_posterior, exact = True, True

    def score(self, log_pi, drawn, noise):
        return log_pi.amax(-1) + 3 * noise


DECODERS = [
    {"order": Wavering(), "block": 5},
    *({"order": ORDERS[name](), "block": 4, "tokens_per_step": 2} for name in ORDERS),
    {"order": ORDERS["max-probability"](), "block": None, "temperature": 0.5},
    {"order": ORDERS["sampled-confidence"](), "block": 3, "temperature": 0.0},
    {"order": ORDERS["uniform"](), "block": 4, "certainty": 0.6},
    {"order": ORDERS["max-probability"](), "block": 5, "certainty": 0.6},
]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("settings", DECODERS)
def test_without_a_cache_every_row_is_what_the_plain_reference_makes_of_it_alone(family, settings):
    model, prompts, decoder = network(family), asked(*LENGTHS), Decoder(**settings)
    done = decode_rows(model, prompts, LENGTH, decoder, seed=3, batch=4)
    for row in range(len(prompts)):
        expected = by_hand(model, alone(prompts, row), row, decoder, seed=3)
        assert done.tokens[row, -LENGTH:].tolist() == expected
    assert torch.equal(done.tokens[:, :-LENGTH], prompts.tokens)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("settings", DECODERS)
@pytest.mark.parametrize("refresh", [1, 2, 9])
def test_a_model_of_one_layer_needs_no_refresh_so_its_cache_is_exact(family, settings, refresh):
    """Its keys and values are functions of the tokens alone, and outside the windows no token changes."""
    model, prompts = network(family, layers=1), asked(*LENGTHS)
    exact, cached = (
        decode_rows(model, prompts, LENGTH, Decoder(**settings, **changes), seed=1, batch=3)
        for changes in ({}, {"cache": "block", "refresh": refresh})
    )
    assert torch.equal(exact.tokens, cached.tokens)
    assert torch.equal(exact.revealed_at, cached.revealed_at)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("settings", DECODERS)
@pytest.mark.parametrize("cached", [{}, {"cache": "block"}, {"cache": "block", "refresh": 2}])
@pytest.mark.parametrize("until_end", [False, True])
def test_a_row_does_not_depend_on_the_rows_beside_it(family, settings, cached, until_end):
    model, prompts = network(family), asked(*LENGTHS)
    decoder = Decoder(**settings, **cached, until_end=until_end)
    together = decode_rows(model, prompts, LENGTH, decoder, seed=2, batch=len(prompts))
    again = decode_rows(model, prompts, LENGTH, decoder, seed=2, batch=2)
    assert torch.equal(again.tokens, together.tokens)
    assert torch.equal(again.revealed_at, together.revealed_at)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("length", [13, 14, 15])
def test_a_short_last_block_is_the_same_beside_rows_at_other_blocks(family, length):
    """Rows end after as many blocks as their numbers say, so that blocks of all places meet in a batch."""
    model, prompts = network(family).double(), asked(*LENGTHS * 6)
    decoder = Decoder(order=ORDERS["max-probability"](), block=4, cache="block", refresh=2)

    def ended(rows, completions, written):
        return [count >= 4 * (1 + row % 4) for row, count in zip(rows, written, strict=True)]

    one, some = (
        decode_rows(model, prompts, length, decoder, seed=2, batch=batch, ended=ended) for batch in (1, 5)
    )
    assert torch.equal(one.tokens, some.tokens)


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_changes_no_cached_row(family):
    model, prompts = network(family), asked(*LENGTHS)
    decoder = Decoder(order=ORDERS["max-probability"](), block=4, cache="block")
    padded = decode_rows(model, prompts, LENGTH, decoder, seed=0, batch=4)
    bare = prompts.select([1])
    assert bare.attention.all()
    for row in range(
        len(prompts)
    ):  # the row keeps its number, and so its noise, if the others before it stay
        tokens = torch.stack([alone(prompts, row)] * (row + 1))
        unpadded = Prompts(tokens, torch.ones_like(tokens, dtype=torch.bool), [None] * (row + 1))
        done = decode_rows(model, unpadded, LENGTH, decoder, seed=0, batch=4)
        assert torch.equal(done.tokens[row, -LENGTH:], padded.tokens[row, -LENGTH:])


@pytest.mark.parametrize("cache", ["none", "block"])
def test_rows_with_an_end_token_leave_and_the_rest_of_them_is_end_tokens(cache):
    model, prompts = network("llada"), asked(*LENGTHS * 6)
    decoder = Decoder(order=ORDERS["max-probability"](), block=2, cache=cache)
    whole = decode_rows(model, prompts, LENGTH, decoder, seed=5, batch=6).tokens[:, -LENGTH:]
    sizes: list[int] = []
    decoder = Decoder(order=ORDERS["max-probability"](), block=2, cache=cache, until_end=True)
    first = model.blocks[0].attention_norm
    hook = first.register_forward_pre_hook(lambda _, inputs: sizes.append(len(inputs[0])))
    done = decode_rows(model, prompts, LENGTH, decoder, seed=5, batch=6)
    hook.remove()
    short = 0
    for full, cut, step in zip(whole, done.tokens[:, -LENGTH:], done.revealed_at[:, -LENGTH:], strict=True):
        found = (full == EOS).nonzero()
        end = LENGTH if len(found) == 0 else 2 * (int(found[0]) // 2) + 2  # the end of the block that has it
        short += end < LENGTH
        assert torch.equal(cut[:end], full[:end])
        assert (cut[end:] == EOS).all()
        assert sorted(step[:end].tolist()) == list(range(end))
        assert (step[end:] == end).all()
    assert 3 < short < len(prompts)
    # Leaving rows make room: fewer passes than all rows to their ends would take, in full batches at first.
    assert sum(sizes) < len(prompts) * LENGTH
    assert sizes[: len(prompts) // 6] == [6] * (len(prompts) // 6)


def test_who_is_done_can_be_said_from_outside():
    model, prompts = network("llada"), asked(*LENGTHS)

    def ended(rows, completions, written):
        return [count >= 2 + 2 * row for row, count in zip(rows, written, strict=True)]

    decoder = Decoder(order=ORDERS["max-probability"](), block=2, cache="block")
    done = decode_rows(model, prompts, LENGTH, decoder, seed=0, batch=3, ended=ended)
    whole = decode_rows(model, prompts, LENGTH, decoder, seed=0, batch=3)
    for row in range(len(prompts)):
        end = min(2 + 2 * row, LENGTH)
        assert torch.equal(done.tokens[row, 7 : 7 + end], whole.tokens[row, 7 : 7 + end])
        assert (done.tokens[row, 7 + end :] == EOS).all()


def test_an_end_token_counts_only_where_it_is_written():
    completions = torch.tensor([[1, EOS, 1, 1], [1, 1, EOS, 1], [1, 1, 1, 1]])
    assert at_end_token(EOS)([0, 1, 2], completions, [2, 2, 4]) == [True, False, False]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_cached_pass_over_a_window_equals_the_whole_pass_if_nothing_else_has_changed(family):
    model, prompts = network(family, layers=3), asked(*LENGTHS)
    tokens = torch.cat([prompts.tokens, torch.full((len(prompts), LENGTH), MASK)], 1)
    attention = torch.cat([prompts.attention, torch.ones(len(prompts), LENGTH, dtype=torch.bool)], 1)
    start = torch.tensor([7, 9, 8, 12, 13])
    with torch.no_grad():
        cache = model.new_cache(len(prompts), tokens.shape[1])
        whole = model.hidden(tokens, attention, cache)
        torch.testing.assert_close(whole, model.hidden(tokens, attention))
        where = start[:, None] + torch.arange(4)
        window = model.hidden(tokens.gather(1, where), attention, cache, start)
    expected = whole.gather(1, where[..., None].expand(-1, -1, whole.shape[-1]))
    torch.testing.assert_close(window, expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("shift", "length", "size"), list(itertools.product((0, 1), (5, 9), (2, 3, 5))))
def test_windows_hold_the_blocks_and_what_predicts_them(shift, length, size):
    starts = list(range(0, length, size))
    spans = Spans.of(starts, size, length, shift, torch.device("cpu"))
    windows = spans.window[:, None] + torch.arange(spans.reach)
    for start, block_size, where, inside, window in zip(
        starts, spans.sizes, spans.where, spans.inside, windows, strict=True
    ):
        block = list(range(start, min(start + size, length)))
        assert where[inside].tolist() == block
        assert block_size == len(block)
        assert {max(i - shift, 0) for i in block} | set(block) <= set(window.tolist())
        assert 0 <= window.min() <= window.max() < length
        assert len(window) == spans.reach <= size + shift
    for start, first in zip(starts, spans.before.tolist(), strict=True):
        needed = range(max(start - size - shift, 0), min(start + size, length))
        assert set(needed) <= set(range(first, first + spans.far))
        assert first + spans.far <= length


def test_fewer_refreshes_are_fewer_whole_passes():
    model, prompts = network("llada"), asked(4, 4, 4, 4)
    passes: list[tuple[int, int]] = []
    first = model.blocks[0].attention_norm
    hook = first.register_forward_pre_hook(lambda _, inputs: passes.append(inputs[0].shape[:2]))
    order = ORDERS["max-probability"]()
    decoder = Decoder(order=order, block=2, tokens_per_step=2, cache="block", refresh=3)
    decode_rows(model, prompts, LENGTH, decoder, seed=0, batch=3)
    hook.remove()
    # Blocks 0 and 3 of five begin with whole rows of 14, the others with two blocks; then the fourth row.
    expected = [(3, 14), (3, 4), (3, 4), (3, 14), (3, 4), (1, 14), (1, 4), (1, 4), (1, 14), (1, 4)]
    assert [tuple(shape) for shape in passes] == expected


def test_completions_of_a_prompt_share_the_first_pass_wherever_they_join():
    """Six rows of two prompts through four places; rows 0 and 3 leave after one block, others after two."""
    model, prompts = network("llada"), asked(4, 4).repeat(3)
    passes: list[tuple[int, int]] = []
    hook = model.blocks[0].attention_norm.register_forward_pre_hook(
        lambda _, inputs: passes.append(tuple(inputs[0].shape[:2]))
    )
    decoder = Decoder(order=ORDERS["max-probability"](), block=4, tokens_per_step=4, cache="block")

    def ended(rows, completions, written):
        return [count >= (4 if row in (0, 3) else 8) for row, count in zip(rows, written, strict=True)]

    together = decode_rows(model, prompts, LENGTH, decoder, seed=0, batch=4, ended=ended)
    # Three rows of the first prompt and one of the second; then two of the second join two that go on.
    assert passes == [(2, 14), (3, 14), (2, 14)]
    hook.remove()
    alone = decode_rows(model, prompts, LENGTH, decoder, seed=0, batch=1, ended=ended)
    assert torch.equal(together.tokens, alone.tokens)


@pytest.mark.parametrize("refresh", [1, 2, 3])
@pytest.mark.parametrize("family", FAMILIES)
def test_completions_that_join_late_share_what_is_due(family, refresh):
    """Rows end after as many blocks as their numbers say, so some rows of a batch are due and others not."""
    model, prompts = network(family).double(), asked(*LENGTHS[:2]).repeat(5)
    decoder = Decoder(order=ORDERS["max-probability"](), block=2, cache="block", refresh=refresh)

    def ended(rows, completions, written):
        return [count >= 2 * (1 + row % 4) for row, count in zip(rows, written, strict=True)]

    one, some = (
        decode_rows(model, prompts, LENGTH, decoder, seed=2, batch=batch, ended=ended) for batch in (1, 4)
    )
    assert torch.equal(one.tokens, some.tokens)
    assert torch.equal(one.revealed_at, some.revealed_at)


@pytest.mark.parametrize("settings", DECODERS)
def test_completions_of_a_prompt_are_what_they_are_alone(settings):
    model, prompts = network("dream"), asked(*LENGTHS[:2]).repeat(3)
    decoder = Decoder(**settings, cache="block")
    together, alone = (
        decode_rows(model, prompts, LENGTH, decoder, seed=3, batch=batch) for batch in (len(prompts), 1)
    )
    assert torch.equal(together.tokens, alone.tokens)
    assert torch.equal(together.revealed_at, alone.revealed_at)


def test_batches_of_the_plain_loop_are_the_plain_loop():
    model, prompts, decoder = network("llada"), asked(4, 4, 4), Decoder(block=4)
    whole = decode_all(model, prompts, LENGTH, decoder, stream(0, "test"), 3)
    assert torch.equal(whole.tokens, decode(model, prompts, LENGTH, decoder, stream(0, "test")).tokens)
    noise = stream(0, "test")
    parts = [decode(model, prompts.select(rows), LENGTH, decoder, noise) for rows in ([0, 1], [2])]
    halves = decode_all(model, prompts, LENGTH, decoder, stream(0, "test"), 2)
    assert torch.equal(halves.tokens, torch.cat([part.tokens for part in parts]))


@pytest.mark.parametrize("rows", [0, 3])
def test_nothing_asked_is_a_prompt_too(rows):
    model, nothing = network("llada"), torch.zeros(rows, 0, dtype=torch.long)
    decoder = Decoder(order=ORDERS["max-probability"](), block=4, cache="block")
    done = decode_rows(model, Prompts(nothing, nothing.bool(), [None] * rows), LENGTH, decoder, 0, batch=2)
    assert done.tokens.shape == (rows, LENGTH)
    assert (done.tokens != MASK).all()


def test_a_model_without_keys_is_refused_a_cache_by_name():
    table = Tabular(torch.zeros(9, 2, 2))
    prompts = Prompts(torch.zeros(1, 0, dtype=torch.long), torch.ones(1, 0, dtype=torch.bool), [None])
    with pytest.raises(ConfigError, match=r"decoding\.cache block needs a native transformer"):
        decode_rows(table, prompts, 2, Decoder(cache="block"), seed=0, batch=1)
