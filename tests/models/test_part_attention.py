"""The kernel for passes over windows and over some of the rows, against plain attention in float32."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from dtm.random import stream

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(
    ("queries", "length", "heads", "kv_heads", "width"),
    [
        (32, 428, 4, 4, 128),
        (7, 50, 6, 2, 64),
        (64, 100, 4, 4, 32),
        (428, 428, 4, 4, 128),
        (130, 131, 6, 2, 16),
    ],
)
def test_it_is_attention_to_the_real_keys(
    queries: int, length: int, heads: int, kv_heads: int, width: int, padded: bool
) -> None:
    """Also where whole tiles of keys are padding, and for rows of other lengths beside each other."""
    from dtm.models.part_attention import part_attention, serves

    noise = stream(0, "attention")
    q = torch.randn(3, queries, heads, width, generator=noise)
    k, v = (torch.randn(3, length, kv_heads, width, generator=noise) for _ in range(2))
    real = torch.ones(3, length, dtype=torch.bool)
    real[0, : length - 3], real[1, : length // 2] = False, False
    mask = real if padded else None
    q, k, v = (each.cuda().bfloat16() for each in (q, k, v))
    assert serves(q)
    found = part_attention(q, k, v, None if mask is None else mask.cuda())
    wanted = F.scaled_dot_product_attention(
        *(each.float().transpose(1, 2) for each in (q, k, v)),
        attn_mask=None if mask is None else mask.cuda()[:, None, None],
        enable_gqa=True,
    ).transpose(1, 2)
    torch.testing.assert_close(found.float(), wanted, rtol=2e-2, atol=1e-2)


@pytest.mark.parametrize("compiled", [False, True])
def test_a_cached_pass_takes_it_and_gives_what_plain_attention_gives(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dtm.models import block
    from dtm.models.shape import TransformerConfig
    from dtm.models.transformer import Transformer

    config = TransformerConfig(vocab_size=40, mask_id=39, eos_id=38, width=64, layers=2, heads=4, ffn=96)
    model = Transformer(config, stream(0, "weights")).cuda().bfloat16().eval()
    tokens = torch.randint(0, 40, (3, 50), generator=stream(0, "tokens")).cuda()
    start = torch.tensor([8, 20, 40], device="cuda")
    calls = []

    def states() -> torch.Tensor:
        cache = model.new_cache(3, 50)
        model.fill(tokens[1:], None, cache.of(torch.tensor([1, 2], device="cuda")))
        model.fill(tokens[:1], None, cache.of(torch.tensor([0], device="cuda")))
        windows = tokens.gather(1, start[:, None] + torch.arange(8, device="cuda"))
        return model.hidden(windows, None, cache, start)

    with torch.no_grad():
        kernel = block.part_attention
        if compiled:
            model.compile_blocks()
        else:
            watched = lambda *inputs: calls.append(inputs) or kernel.part_attention(*inputs)  # noqa: E731
            monkeypatch.setattr(block, "part_attention", Watched(watched, kernel.serves))
        found = states()
        assert compiled or len(calls) == 3 * config.layers
        model.compiled = False
        monkeypatch.setattr(block, "part_attention", None)
        torch.testing.assert_close(found, states(), rtol=5e-2, atol=5e-2)


class Watched:
    """The module with a kernel whose calls are counted."""

    def __init__(self, part_attention: object, serves: object) -> None:
        self.part_attention, self.serves = part_attention, serves
