"""The native transformer against rows alone, other shapes of itself, and what its interface promises."""

from __future__ import annotations

import pytest
import torch

from dtm.errors import ConfigError
from dtm.models import Transformer, TransformerConfig
from dtm.models.block import rotary, rotate
from dtm.random import stream

MASK = 10


def model(seed: int = 0, **changes) -> Transformer:
    shape = {"vocab_size": 11, "mask_id": MASK, "eos_id": 0, "width": 32, "layers": 2, "heads": 4, "ffn": 48}
    built = Transformer(TransformerConfig(**shape | changes), stream(seed, "test"))
    with torch.no_grad():  # weights of 0.02 would attend to everything alike
        for parameter in built.parameters():
            if parameter.dim() == 2:
                parameter.mul_(10)
    return built.eval()


def sentence(length: int, seed: int = 0) -> torch.Tensor:
    tokens = torch.randint(0, MASK, (length,), generator=stream(seed, "sentence"))
    tokens[length // 2 :] = MASK
    return tokens


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"kv_heads": 2},
        {"tied": True},
        {"qkv_bias": True},
        {"head_width": 12, "kv_heads": 2},
        {"qk_norm": True, "kv_heads": 2},
    ],
)
def test_a_padded_batch_equals_its_unpadded_rows(changes):
    network = model(**changes)
    rows = [sentence(length, seed=length) for length in (3, 5, 9)]
    tokens = torch.stack([torch.cat([torch.zeros(9 - len(row), dtype=torch.long), row]) for row in rows])
    attention = torch.arange(9) >= 9 - torch.tensor([[len(row)] for row in rows])
    where = (tokens == MASK) & attention
    together = network(tokens, attention, where)
    alone = torch.cat([network(row[None], None, row[None] == MASK) for row in rows])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)
    assert (network(tokens, None, where) - alone).abs().max() > 1e-3  # the padding would have mattered


def test_attention_looks_both_ways():
    network, tokens = model(), sentence(6)
    changed = tokens.clone()
    changed[-1] = 3
    where = torch.arange(6)[None] == 3
    before, after = (network(row[None], None, where) for row in (tokens, changed))
    assert (before - after).abs().max() > 1e-3


def test_grouped_heads_equal_full_heads_with_repeated_keys_and_values():
    grouped, full = model(kv_heads=2), model()
    weights = grouped.state_dict()
    for name, value in weights.items():
        if name.endswith(("attention.k.weight", "attention.v.weight")):
            weights[name] = value.unflatten(0, (2, 8)).repeat_interleave(2, 0).flatten(0, 1)
    full.load_state_dict(weights)
    tokens = sentence(7)[None]
    torch.testing.assert_close(grouped.hidden(tokens), full.hidden(tokens), atol=1e-5, rtol=0)


def test_normed_queries_and_keys_forget_their_lengths():
    network, tokens = model(qk_norm=True, norm_eps=1e-12), sentence(6)[None]
    before = network.logits(tokens)
    with torch.no_grad():
        for block in network.blocks:
            block.attention.q.weight.mul_(3.0)
            block.attention.k.weight.mul_(0.1)
    torch.testing.assert_close(network.logits(tokens), before, atol=1e-5, rtol=1e-4)
    with torch.no_grad():
        network.blocks[0].attention.q_norm.weight.mul_(3.0)
    assert (network.logits(tokens) - before).abs().max() > 1e-3


def test_a_stated_head_width_of_width_over_heads_changes_nothing():
    plain, same = model(), model(head_width=8)
    tokens = sentence(7)[None]
    assert torch.equal(plain.hidden(tokens), same.hidden(tokens))


def test_as_many_key_value_heads_as_heads_is_plain_attention():
    plain, same = model(), model(kv_heads=4)
    tokens = sentence(7)[None]
    assert torch.equal(plain.hidden(tokens), same.hidden(tokens))


def test_tied_weights_are_one_parameter():
    network = model(tied=True)
    assert "unembedding.weight" not in network.state_dict()
    rows = torch.randn(3, 32, generator=stream(0, "rows"))
    torch.testing.assert_close(network.head(rows), rows @ network.embedding.weight.T)
    network.head(rows).sum().backward()
    assert network.embedding.weight.grad.abs().sum() > 0


def test_projection_biases_begin_at_zero_and_count():
    plain, biased = model(), model(qkv_bias=True)
    names = {name for name in biased.state_dict() if name.endswith("bias")}
    assert names == {f"blocks.{b}.attention.{p}.bias" for b in range(2) for p in "qkv"}
    assert all(not biased.state_dict()[name].any() for name in names)
    biased.load_state_dict(plain.state_dict(), strict=False)
    tokens = sentence(7)[None]
    assert torch.equal(plain.hidden(tokens), biased.hidden(tokens))
    with torch.no_grad():
        biased.blocks[0].attention.v.bias.fill_(1.0)
    assert not torch.allclose(plain.hidden(tokens), biased.hidden(tokens))


def test_the_mask_token_is_never_predicted():
    network, tokens = model(), sentence(8)[None]
    with torch.no_grad():
        network.unembedding.weight[MASK] = 100 * network.hidden(tokens)[0, -1]
    pi = network(tokens, None, tokens == MASK).exp()
    assert (pi[:, MASK] == 0).all()
    torch.testing.assert_close(pi.sum(-1), torch.ones(len(pi)))


def test_the_head_on_chosen_rows_is_the_head_everywhere_gathered():
    network = model()
    tokens = torch.stack([sentence(8, seed) for seed in range(3)])
    where = torch.rand(tokens.shape, generator=stream(0, "where")) < 0.4
    everywhere = network(tokens, None, torch.ones_like(where)).unflatten(0, tokens.shape)
    torch.testing.assert_close(network(tokens, None, where), everywhere[where], atol=1e-6, rtol=0)


def test_initial_weights_follow_their_generator_alone():
    torch.manual_seed(1)
    first = model(seed=3).state_dict()
    torch.manual_seed(2)
    again, other = model(seed=3).state_dict(), model(seed=4).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["embedding.weight"], other["embedding.weight"])


def test_rotary_scores_depend_on_distance_alone():
    q, k = torch.randn(2, 1, 1, 1, 8, generator=stream(0, "qk")).expand(2, 1, 12, 1, 8)
    angles = rotary(12, 8, 10_000.0, torch.device("cpu"))
    scores = rotate(q, angles)[0, :, 0] @ rotate(k, angles)[0, :, 0].T
    for offset in range(-11, 12):
        diagonal = scores.diagonal(offset)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal), atol=1e-5, rtol=0)
    assert not torch.allclose(scores[0, 0], scores[0, 5])


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"width": 30}, "model.heads 4"),
        ({"width": 12}, "even head width"),
        ({"width": 30, "head_width": 9}, "even head width, got 9"),
        ({"kv_heads": 3}, "model.kv_heads 3"),
        ({"mask_id": 11}, "outside the vocabulary"),
    ],
)
def test_an_impossible_shape_is_refused_by_name(changes, named):
    with pytest.raises(ConfigError, match=named):
        model(**changes)


@pytest.mark.parametrize("blocks", [1, 2])
def test_recomputed_blocks_have_the_same_gradients(blocks):
    plain, lean = model(), model()
    lean.recompute = blocks
    tokens = torch.stack([sentence(8, seed) for seed in range(3)])
    for network in (plain, lean):
        network(tokens, None, tokens == MASK).square().mean().backward()
    for one, other in zip(plain.parameters(), lean.parameters(), strict=True):
        assert torch.equal(one.grad, other.grad)


@pytest.mark.parametrize("recompute", [0, 2])
@pytest.mark.parametrize("padded", [False, True])
def test_states_at_some_positions_are_those_of_a_whole_pass(padded, recompute):
    """Of the other positions the last half block is left out: values and gradients stay the same."""
    network, tokens, at = model(), sentence(24).view(3, 8), torch.tensor([4, 9, 23, 9])
    network.recompute = recompute
    attention = torch.ones_like(tokens, dtype=torch.bool)
    attention[0, :3] = not padded
    passes = (
        lambda: network.hidden(tokens, attention).flatten(0, 1)[at],
        lambda: network.hidden(tokens, attention, at=at),
    )
    found = []
    for states in (one() for one in passes):
        network.zero_grad()
        states.square().sum().backward()
        found.append([states, *(p.grad.clone() for p in network.parameters() if p.grad is not None)])
    torch.testing.assert_close(found[1], found[0], atol=1e-5, rtol=1e-5)


def test_the_last_half_block_runs_where_states_are_asked_for():
    network, tokens = model(), sentence(24).view(3, 8)
    rows = []
    for block in network.blocks:
        block.down.register_forward_pre_hook(lambda _, inputs: rows.append(inputs[0].shape[:-1].numel()))
    network(tokens, None, tokens == MASK)
    assert rows == [24, int((tokens == MASK).sum())]
