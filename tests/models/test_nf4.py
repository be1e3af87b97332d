"""Four-bit base weights on a CPU: close to the full ones, smaller, and trainable through."""

from __future__ import annotations

import logging
import sys

import pytest
import torch

import dtm
from dtm.errors import CheckpointError, ConfigError
from dtm.models import LoRA, Policy
from dtm.models.nf4 import bitsandbytes, full_weight, is_nf4
from dtm.random import stream

SIZES = {
    "llada": {"d_model": 128, "mlp_hidden_size": 256},
    "dream": {"hidden_size": 128, "intermediate_size": 256},
}


@pytest.fixture(params=["llada", "dream"])
def folder(write_hub, request):
    pytest.importorskip("bitsandbytes")
    return write_hub(request.param, shards=2, scale=0.05, **SIZES[request.param])


def tokens() -> torch.Tensor:
    return torch.randint(2, 18, (3, 8), generator=stream(0, "tokens"))


def test_projections_are_close_to_full_precision_and_the_rest_is_equal(folder):
    full, small = dtm.load_model(folder), dtm.load_model(folder, nf4=True)
    x = torch.randn(50, 128, generator=stream(0, "x"))
    for name in ("attention.q", "up"):
        exact, rounded = (model.blocks[0].get_submodule(name)(x) for model in (full, small))
        # The root mean square error of NF4 is 9 to 10 % for normal weights in blocks of 64.
        assert 0.08 < (rounded - exact).norm() / exact.norm() < 0.11
    for name in ("embedding", "unembedding", "norm"):
        assert torch.equal(full.get_submodule(name).weight, small.get_submodule(name).weight)
    for name, layer in small.named_modules():
        assert is_nf4(layer) == (
            name.startswith("blocks.") and name.split(".")[-1] in ["q", "k", "v", "out", "gate", "up", "down"]
        )


def test_rounded_weights_are_neither_larger_nor_smaller_than_the_full_ones(folder):
    full, small = dtm.load_model(folder), dtm.load_model(folder, nf4=True)
    for name, layer in small.named_modules():
        if is_nf4(layer):
            exact, rounded = full.get_submodule(name).weight.detach(), full_weight(layer)
            slope = (exact * rounded).sum() / exact.square().sum()
            assert float(slope) == pytest.approx(1, abs=0.01)


def test_the_model_is_that_of_the_rounded_weights(folder):
    bitsandbytes = pytest.importorskip("bitsandbytes")
    rounded, small = dtm.load_model(folder), dtm.load_model(folder, nf4=True)
    for name, layer in small.named_modules():
        if is_nf4(layer):
            weight = bitsandbytes.functional.dequantize_4bit(layer.weight.data, layer.weight.quant_state)
            rounded.get_submodule(name).weight.data = weight
    torch.testing.assert_close(small.logits(tokens()), rounded.logits(tokens()), atol=1e-4, rtol=0)


def test_the_projections_take_about_half_a_byte_each(folder):
    model = dtm.load_model(folder, nf4=True)
    weights = [layer.weight for layer in model.modules() if is_nf4(layer)]
    stored = sum(weight.nbytes for weight in weights)
    assert stored * 2 == sum(weight.quant_state.shape.numel() for weight in weights)


def test_an_adapter_learns_above_four_bits_and_the_base_stays(folder):
    base = dtm.load_model(folder, nf4=True)
    policy = Policy(base, lora=LoRA(rank=4, alpha=8.0))
    frozen = {name: p.clone() for name, p in base.named_parameters()}
    shared = {p.data_ptr() for p in base.parameters()}
    assert shared <= {p.data_ptr() for p in policy.teacher.parameters()}
    where = torch.ones_like(tokens(), dtype=torch.bool)
    start = policy.teacher(tokens(), None, where)
    assert torch.equal(policy.student(tokens(), None, where), start)
    optimizer = torch.optim.Adam(policy.trained(), lr=1e-2)
    losses = []
    for _ in range(5):
        policy.student.train()
        loss = -policy.student(tokens(), None, where).gather(1, tokens().flatten()[:, None]).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        assert torch.equal(policy.teacher(tokens(), None, where), start)
    assert losses[-1] < losses[0]
    assert all(torch.equal(p, frozen[name]) for name, p in base.named_parameters())


def test_four_bit_weights_are_not_saved_as_a_model(folder, tmp_path):
    with pytest.raises(CheckpointError, match="NF4"):
        dtm.save_model(dtm.load_model(folder, nf4=True), tmp_path / "out")


def test_without_bitsandbytes_the_extra_is_named(write_hub, monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(ConfigError, match=r"pip install -e '\.\[nf4\]'"):
        dtm.load_model(write_hub("llada"), nf4=True)


def test_importing_bitsandbytes_prints_nothing_that_a_user_should_not_follow(tmp_path, monkeypatch, caplog):
    """Its import logs a warning to install a package of the hub, which NF4 does not need."""
    (tmp_path / "bitsandbytes.py").write_text(
        'import logging\nlogging.getLogger("bitsandbytes.cpu").warning("Please pip install kernels")\n'
    )
    monkeypatch.delitem(sys.modules, "bitsandbytes", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    assert bitsandbytes().__file__ == str(tmp_path / "bitsandbytes.py")
    assert not caplog.records
    monkeypatch.delitem(sys.modules, "bitsandbytes")
    logging.getLogger("bitsandbytes.cpu").warning("later")
    assert [record.message for record in caplog.records] == ["later"]
