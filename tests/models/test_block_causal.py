"""Block-causal attention: who attends to whom, padding, and the doubled pass against rows of their own."""

from __future__ import annotations

import json

import pytest
import torch

import dtm
from dtm.errors import ConfigError
from dtm.models import Transformer, TransformerConfig
from dtm.random import stream

MASK, LENGTH = 10, 12


def network(block: int | None, **changes) -> Transformer:
    shape = {"vocab_size": 11, "mask_id": MASK, "eos_id": 0, "width": 32, "layers": 3, "heads": 4, "ffn": 48}
    built = Transformer(TransformerConfig(**shape | {"attention_block": block} | changes), stream(0, "test"))
    with torch.no_grad():  # weights of 0.02 would attend to everything alike
        for parameter in built.parameters():
            if parameter.dim() == 2:
                parameter.mul_(10)
    return built.double().eval()


def rows(length: int = LENGTH) -> tuple[torch.Tensor, torch.Tensor]:
    """x_1, and x_t with masks in the last two thirds."""
    noise = stream(1, "rows")
    clean = torch.randint(0, MASK, (3, length), generator=noise)
    hidden = (torch.rand(clean.shape, generator=noise) < 0.6) & (torch.arange(length) >= 4)
    return clean, torch.where(hidden, MASK, clean)


PADDED = torch.arange(LENGTH) >= torch.tensor([[0], [1], [3]])


@pytest.mark.parametrize("block", [1, 2, 4])
@pytest.mark.parametrize("attention", [None, PADDED])
def test_a_state_depends_on_its_own_block_and_on_earlier_ones_alone(block, attention):
    model, (_, tokens) = network(block), rows()
    before = model.hidden(tokens, attention)
    for column in range(4, LENGTH):
        changed = tokens.clone()
        changed[:, column] = (tokens[:, column] + 1) % MASK
        moved = (model.hidden(changed, attention) - before).abs().amax((0, 2)) > 1e-9
        assert moved.tolist() == [j // block >= column // block for j in range(LENGTH)]


@pytest.mark.parametrize("block", [1, 2, 4])
def test_padding_in_whole_blocks_changes_no_real_state_and_gives_no_nan(block):
    model, (_, tokens) = network(block), rows()
    widened = torch.cat([torch.zeros(3, 4, dtype=torch.long), tokens], dim=1)
    attention = torch.arange(LENGTH + 4) >= 4
    padded = model.hidden(widened, attention.expand(3, -1))
    torch.testing.assert_close(padded[:, 4:], model.hidden(tokens), atol=1e-6, rtol=0)
    assert padded.isfinite().all()


def test_blocks_of_one_are_causal_with_and_without_a_mask_tensor():
    model, (_, tokens) = network(1), rows()
    fast = model.hidden(tokens)
    slow = model.hidden(tokens, torch.ones_like(tokens, dtype=torch.bool))
    torch.testing.assert_close(fast, slow, atol=1e-12, rtol=0)


def test_one_block_of_the_whole_row_is_full_attention():
    _, tokens = rows()
    torch.testing.assert_close(network(LENGTH).hidden(tokens), network(None).hidden(tokens))


@pytest.mark.parametrize("block", [1, 2, 4])
@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("attention", [None, PADDED])
@pytest.mark.parametrize("length", [LENGTH, LENGTH - 1])
def test_the_doubled_pass_equals_a_row_for_each_block(block, shift, attention, length):
    """Row b: x_1 before block b, x_t in it, masks after it."""
    model, (clean, noisy) = network(block, shift=shift, kv_heads=2), rows(length)
    attention = None if attention is None else attention[:, :length]
    where = noisy == MASK
    together = torch.zeros(*noisy.shape, 11, dtype=torch.double)
    together[where] = model(noisy, attention, where, clean=clean)
    number = torch.arange(length) // block
    for active in range(4 // block, -(-length // block)):
        row = torch.where(number < active, clean, torch.where(number == active, noisy, MASK))
        scored = where & (number == active)
        alone = model(row, attention, scored)
        torch.testing.assert_close(together[scored], alone, atol=1e-10, rtol=0)


def test_the_doubled_pass_has_gradients_and_is_reported_as_twice_the_positions():
    model, (clean, noisy) = network(4), rows()
    seen = []
    model.on_pass = lambda _, *numbers: seen.append(numbers)
    model.recompute = 1
    model(noisy, PADDED, noisy == MASK, clean=clean).sum().backward()
    assert seen == [(2 * noisy.numel(), LENGTH, int((noisy == MASK).sum()), True)]
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_full_attention_refuses_the_doubled_pass():
    clean, noisy = rows()
    with pytest.raises(ConfigError, match="full attention has no pass over x_t and x_1"):
        network(None)(noisy, None, noisy == MASK, clean=clean)


def test_the_block_is_saved_where_there_is_one(tmp_path):
    for block in (None, 4):
        dtm.save_model(network(block).float(), tmp_path)
        assert dtm.load_model(tmp_path).attention_block == block
        written = json.loads((tmp_path / "config.json").read_text())
        assert ("attention_block" in written) == (block is not None)


def test_a_block_of_no_columns_is_refused():
    with pytest.raises(ConfigError, match="attention_block must be at least 1"):
        TransformerConfig(vocab_size=11, mask_id=MASK, eos_id=0, attention_block=0)
