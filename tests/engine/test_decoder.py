"""The sampling loop: who is revealed when, and from which law."""

from __future__ import annotations

import itertools

import pytest
import torch

from dtm.engine import ORDERS, Decoder, MaxProbability, generate
from dtm.engine.decoder import quotas
from dtm.errors import ConfigError
from dtm.models import Denoiser, Transformer, TransformerConfig
from dtm.random import stream
from dtm.records import Prompts
from dtm.verify.tabular import Tabular

MASK = 6


def nothing(rows: int) -> Prompts:
    """Prompts of no tokens."""
    return given(torch.zeros(rows, 0, dtype=torch.long))


def given(tokens: torch.Tensor) -> Prompts:
    return Prompts(tokens, torch.ones_like(tokens, dtype=torch.bool), [None] * len(tokens))


@pytest.fixture(scope="module")
def network() -> Transformer:
    shape = TransformerConfig(vocab_size=7, mask_id=MASK, eos_id=0, width=16, layers=1, heads=2, ffn=24)
    built = Transformer(shape, stream(0, "test"))
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.mul_(15 if parameter.dim() == 2 else 1)
    return built.eval()


class Fixed(Denoiser):
    """The same logits everywhere, whatever the state; counts the rows of each forward pass."""

    def __init__(self, logits: torch.Tensor) -> None:
        super().__init__()
        self.logits, self.vocab_size, self.mask_id, self.eos_id = logits, len(logits), len(logits) - 1, 0
        self.rows: list[int] = []

    def hidden(self, tokens, attention=None):
        self.rows.append(len(tokens))
        return torch.ones(*tokens.shape, 1, dtype=self.logits.dtype)

    def head(self, rows):
        return rows * self.logits


def point_mass(*sequence: int, vocab: int = 3) -> Tabular:
    """All mass on one sequence."""
    logits = torch.zeros((vocab + 1) ** len(sequence), len(sequence), vocab)
    for position, token in enumerate(sequence):
        logits[:, position, token] = 50.0
    return Tabular(logits)


# ── when ──────────────────────────────────────────────────────────────────────────────────────────


def test_quotas_are_as_few_and_as_even_as_they_can_be():
    for positions, limit in itertools.product(range(1, 20), range(1, 25)):
        shares = quotas(positions, limit)
        assert sum(shares) == positions
        assert len(shares) == -(-positions // limit)
        assert max(shares) <= limit
        assert max(shares) - min(shares) <= 1
        assert shares == sorted(shares, reverse=True)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("block", "tokens_per_step", "steps"),
    [
        (None, 1, [[1] * 7]),
        (None, 3, [[3, 2, 2]]),
        (4, 3, [[2, 2], [3]]),
        (3, 2, [[2, 1], [2, 1], [1]]),
        (1, 5, [[1]] * 7),
    ],
)
def test_every_position_is_revealed_once_at_its_blocks_steps(network, order, block, tokens_per_step, steps):
    decoder = Decoder(order=ORDERS[order](), block=block, tokens_per_step=tokens_per_step)
    done = generate(network, given(torch.tensor([[1, 2]] * 3)), 7, decoder, seed=0)
    assert (done.tokens[:, 2:] != MASK).all()
    assert (done.tokens[:, :2] == torch.tensor([1, 2])).all()
    assert (done.revealed_at[:, :2] == -1).all()
    assert (done.is_completion == (torch.arange(9) >= 2)).all()
    first, start = 0, 2
    for shares in steps:
        expected = sorted(step for step, share in enumerate(shares, first) for _ in range(share))
        stop = start + sum(shares)
        for row in done.revealed_at[:, start:stop].tolist():
            assert sorted(row) == expected
        first, start = first + len(shares), stop
    assert start == 9


def test_a_uniform_order_is_a_uniform_order():
    done = generate(Fixed(torch.zeros(3)), nothing(6000), 3, Decoder(), seed=0)
    orders = [tuple(row) for row in done.revealed_at.tolist()]
    for order in itertools.permutations(range(3)):
        assert orders.count(order) == pytest.approx(1000, abs=150)  # five standard deviations


def test_padding_stays_padding(network):
    prompts = Prompts(
        torch.tensor([[0, 0, 3], [1, 2, 3]]), torch.tensor([[False, False, True], [True] * 3]), [None, None]
    )
    greedy = Decoder(order=MaxProbability(), temperature=0.0)
    padded = generate(network, prompts, 4, greedy, seed=0)
    alone = generate(network, given(torch.tensor([[3]])), 4, greedy, seed=0)
    assert padded.attention.tolist()[0] == [False, False, *[True] * 5]
    assert torch.equal(padded.tokens[0, 2:], alone.tokens[0])


# ── what ──────────────────────────────────────────────────────────────────────────────────────────


@torch.no_grad()
def greedy_by_hand(network, prompt: list[int], length: int) -> list[int]:
    tokens = torch.tensor([[*prompt, *[MASK] * length]])
    for _ in range(length):
        pi = network(tokens, None, torch.ones_like(tokens, dtype=torch.bool)).exp()
        peak, token = pi.max(-1)
        position = int(peak.masked_fill(tokens[0] != MASK, 0).argmax())
        tokens[0, position] = token[position]
    return tokens[0].tolist()


def test_temperature_0_takes_the_likeliest_token_whatever_the_batch(network):
    prompts = torch.tensor(list(itertools.product(range(3), repeat=2)))
    decoder = Decoder(order=MaxProbability(), temperature=0.0)
    together = generate(network, given(prompts), 5, decoder, seed=0).tokens.tolist()
    by_hand = [greedy_by_hand(network, prompt, 5) for prompt in prompts.tolist()]
    assert together == by_hand
    alone = [generate(network, given(prompt[None]), 5, decoder, seed=9) for prompt in prompts]
    assert [done.tokens[0].tolist() for done in alone] == by_hand


@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_temperature_raises_probabilities_to_its_inverse(temperature):
    p = torch.tensor([0.6, 0.3, 0.1])
    fixed = Fixed(torch.cat([p.log(), torch.zeros(1)]))
    done = generate(fixed, nothing(20_000), 1, Decoder(temperature=temperature), seed=0)
    expected = p ** (1 / temperature) / (p ** (1 / temperature)).sum()
    found = torch.bincount(done.tokens[:, 0], minlength=3) / 20_000
    torch.testing.assert_close(found, expected, atol=0.02, rtol=0)


def test_a_long_tail_is_drawn_as_often_as_it_weighs_in_bfloat16_too():
    """With bfloat16 noise, a tail of 1000 tokens that holds 10 % of the mass came 0.2 % of the time."""
    head = torch.tensor([9000.0]).log()
    logits = torch.cat([head, torch.zeros(1000), torch.zeros(1)]).bfloat16()
    done = generate(Fixed(logits), nothing(4000), 1, Decoder(), seed=0)
    mass = 1000 / (1000 + float(logits[0].float().exp()))
    assert mass == pytest.approx(0.1, abs=0.005)
    assert float((done.tokens > 0).float().mean()) == pytest.approx(mass, abs=0.02)


# ── certainty ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("block", [None, 2])
def test_a_certain_posterior_needs_one_step_a_block_and_gives_the_exact_completion(order, block):
    table = point_mass(2, 0, 1, 2)
    exact = generate(table, nothing(3), 4, Decoder(block=block), seed=0)
    quick = Decoder(order=ORDERS[order](), block=block, certainty=0.999)
    done = generate(table, nothing(3), 4, quick, seed=1)
    assert torch.equal(done.tokens, exact.tokens)
    assert done.tokens[0].tolist() == [2, 0, 1, 2]
    assert done.revealed_at[0].tolist() == ([0] * 4 if block is None else [0, 0, 1, 1])


def test_rows_that_are_certain_leave_the_batch_and_the_others_go_on():
    logits = torch.zeros(4**4, 4, 3)
    certain = torch.arange(4**4) // 4**3 == 0  # the first token, a prompt, is 0
    logits[certain, 1:, 2] = 50.0
    table, sizes = Tabular(logits), []
    table.register_forward_pre_hook(lambda module, inputs: sizes.append(len(inputs[0])))
    prompts = given(torch.tensor([[0], [1], [0], [1]]))
    done = generate(table, prompts, 3, Decoder(certainty=0.9), seed=0)
    assert sizes == [4, 2, 2]
    assert done.tokens[[0, 2], 1:].tolist() == [[2, 2, 2]] * 2
    assert (done.revealed_at[[0, 2], 1:] == 0).all()
    assert [sorted(row) for row in done.revealed_at[[1, 3], 1:].tolist()] == [[0, 1, 2]] * 2


def test_certainty_no_token_reaches_changes_no_schedule():
    done = generate(Fixed(torch.zeros(4)), nothing(50), 4, Decoder(certainty=0.9), seed=0)
    assert [sorted(row) for row in done.revealed_at.tolist()] == [[0, 1, 2, 3]] * 50


# ── settings ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("changes", "exact"),
    [
        ({}, True),
        ({"block": 3}, True),
        ({"block": 1, "tokens_per_step": 2}, True),
        ({"tokens_per_step": 2}, False),
        ({"temperature": 0.9}, False),
        ({"certainty": 0.99}, False),
        ({"order": ORDERS["sampled-confidence"]()}, False),
    ],
)
def test_a_decoder_knows_whether_it_is_exact(changes, exact):
    assert Decoder(**changes).is_exact == exact


@pytest.mark.parametrize(
    "changes", [{"block": 0}, {"tokens_per_step": 0}, {"temperature": -0.1}, {"certainty": 0.5}]
)
def test_an_impossible_setting_is_refused_by_name(changes):
    with pytest.raises(ConfigError, match=f"decoding.{next(iter(changes)).replace('_', '-')}"):
        Decoder(**changes)
