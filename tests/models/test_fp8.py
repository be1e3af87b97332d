"""Projections in eight bits: how far off they are, what is rounded, and who may decode with them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from dtm.capacity.memory import fp8_bytes
from dtm.engine import Decoder, generate
from dtm.errors import ConfigError
from dtm.models import LoRA, Policy, Transformer, TransformerConfig
from dtm.models import fp8 as module
from dtm.models.fp8 import Fp8Linear, require_products, rounded
from dtm.models.merging import for_decoding, merged
from dtm.random import stream
from dtm.records import Prompts
from dtm.verify.tabular import Tabular

TOKENS = torch.randint(0, 10, (3, 7), generator=stream(0, "tokens"))
EVERYWHERE = torch.ones_like(TOKENS, dtype=torch.bool)
LLADA = {"family": "llada"}
DREAM = {"qkv_bias": True, "kv_heads": 2, "shift": 1}


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=stream(0, "normal"))


def transformer(**changes) -> Transformer:
    sizes = {"vocab_size": 11, "mask_id": 10, "eos_id": 0, "width": 32, "layers": 2, "heads": 4, "ffn": 48}
    model = Transformer(TransformerConfig(**sizes | changes), stream(0, "test")).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(8 if parameter.dim() == 2 else 1)
            if parameter.dim() == 1:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=stream(1, "norms and biases")))
    return model


def restored(x: torch.Tensor) -> torch.Tensor:
    low, scale = rounded(x)
    assert low.dtype == torch.float8_e4m3fn
    return low.float() * scale


def test_rounding_is_off_by_a_sixteenth_or_half_of_the_smallest_step():
    x = normal(40, 64) * torch.logspace(-6, 6, 40)[:, None]
    step = x.abs().amax(1, keepdim=True) / 448 * 2**-9
    error = (restored(x) - x).abs()
    assert (error <= torch.maximum(x.abs() / 16, step / 2) * 1.001).all()
    assert (error > x.abs() / 40).any()  # it is eight bits, not more


def test_the_largest_number_of_a_row_is_kept_and_rows_do_not_see_each_other():
    x = normal(6, 32)
    x[2, 5] = 3e4  # an outlier costs its own row its small numbers
    found, largest = restored(x), x.abs().argmax(1, keepdim=True)
    torch.testing.assert_close(found.gather(1, largest), x.gather(1, largest), rtol=1e-6, atol=0)
    others = [0, 1, 3, 4, 5]
    assert torch.equal(found[others], restored(x[others]))
    assert found[2].count_nonzero() < 32


def test_rows_of_zeros_and_huge_rows_stay_finite():
    x = torch.zeros(3, 16)
    x[1] = 1e30
    x[2] = 1e-30
    assert torch.equal(restored(x)[0], x[0])
    assert torch.isfinite(restored(x)).all()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_layer_multiplies_rounded_rows(bias, dtype):
    weight, x = normal(48, 32).to(dtype), normal(2, 5, 32).to(dtype)
    added = normal(48).to(dtype) if bias else None
    found = Fp8Linear(weight, added)(x)
    expected = restored(x.flatten(0, 1)) @ restored(weight).T
    expected = expected.to(torch.bfloat16).to(dtype).view(2, 5, 48) + (0 if added is None else added)
    assert found.dtype == dtype
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)
    exact = x.float() @ weight.float().T + (0 if added is None else added.float())
    assert 1e-3 < (found - exact).norm() / exact.norm() < 0.06


def test_under_autocast_it_returns_what_other_layers_return():
    layer, x = Fp8Linear(normal(16, 32), None), normal(4, 32)
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
    assert layer(x).dtype == torch.float32


@pytest.mark.parametrize("changes", [LLADA, DREAM])
def test_a_model_in_eight_bits_is_near_the_model_and_shares_all_but_its_projections(changes):
    model = transformer(**changes)
    low = for_decoding(model, fp8=True)
    assert low.fp8
    assert not model.fp8
    assert low.embedding is model.embedding
    assert low.unembedding is model.unembedding
    assert low.blocks[0].attention_norm is model.blocks[0].attention_norm
    assert sum(isinstance(layer, Fp8Linear) for layer in low.modules()) == 4 * 2
    off = (low(TOKENS, None, EVERYWHERE).exp() - model(TOKENS, None, EVERYWHERE).exp()).abs().sum(-1) / 2
    assert 1e-4 < off.mean() < 0.2  # total variation
    assert for_decoding(model, fp8=False) is model


def test_its_memory_is_what_the_estimate_says():
    model = transformer()
    copies = [
        b
        for layer in for_decoding(model, True).modules()
        if isinstance(layer, Fp8Linear)
        for b in layer.buffers()
    ]
    assert fp8_bytes(model.config) == sum(buffer.nbytes for buffer in copies)


def test_an_adapter_is_rounded_with_its_weights_and_made_anew_after_promotion():
    policy = Policy(transformer(), lora=LoRA(rank=4))
    low = policy.pi_a(fp8=True)
    assert policy.pi_a(fp8=True) is low
    assert policy.pi_a() is policy.teacher
    weights = policy.weights(policy.student)
    policy.load_weights(policy.student, {name: 0.3 * normal(*value.shape) for name, value in weights.items()})
    policy.promote()
    again = policy.pi_a(fp8=True)
    assert again is not low
    expected = merged(policy.teacher).blocks[1].gate_up.weight
    layer = again.blocks[1].gate_up
    torch.testing.assert_close(layer.weight.float() * layer.scale.T, restored(expected))
    assert not torch.equal(layer.weight.float(), low.blocks[1].gate_up.weight.float())


@pytest.mark.parametrize("cache", ["none", "block"])
@pytest.mark.parametrize("changes", [LLADA, DREAM])
def test_rows_decoded_in_eight_bits_do_not_depend_on_each_other(changes, cache):
    low = for_decoding(transformer(**changes), fp8=True)
    prompts = Prompts(TOKENS, EVERYWHERE, [None] * len(TOKENS))
    decoder = Decoder(block=4, tokens_per_step=2, cache=cache, fp8=True)
    together, alone = (generate(low, prompts, 12, decoder, batch=batch).tokens for batch in (3, 1))
    assert torch.equal(together, alone)


def test_a_decoder_takes_the_weights_that_it_names_and_no_others():
    model = transformer()
    prompts = Prompts(TOKENS, EVERYWHERE, [None] * len(TOKENS))
    low = for_decoding(model, fp8=True)
    for given, asked in ((model, True), (low, False)):
        with pytest.raises(ConfigError, match=f"decoding.fp8 is {asked}, and .* fp8 .*for_decoding"):
            generate(given, prompts, 4, Decoder(fp8=asked))


def test_eight_bits_are_a_shortcut_and_exact_decoding_goes_without():
    decoder = Decoder(fp8=True)
    assert decoder.shortcuts
    assert not decoder.is_exact
    assert decoder.without_shortcuts == replace(decoder, fp8=False)


def test_what_cannot_be_rounded_is_refused():
    with pytest.raises(ConfigError, match="40 inputs and 32 outputs"):
        Fp8Linear(torch.zeros(32, 40), None)
    with pytest.raises(ConfigError, match="a Tabular"):
        for_decoding(Tabular(torch.zeros(9, 2, 2)), fp8=True)


def test_a_device_without_such_products_is_told_before_any_work(monkeypatch):
    def refuses(*_):
        raise RuntimeError("only on newer devices\nwith details")

    require_products(torch.device("cpu"))
    module._problem.cache_clear()
    monkeypatch.setattr(module, "product", refuses)
    with pytest.raises(ConfigError, match=r"this cpu cannot .* only on newer devices\. Leave --decoding.fp8"):
        require_products(torch.device("cpu"))
    module._problem.cache_clear()
