"""A model on disk: read back as it was, or an error that names what is wrong."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import dtm
from dtm.errors import CheckpointError
from dtm.models import Transformer, TransformerConfig
from dtm.random import stream


@pytest.fixture
def model() -> Transformer:
    shape = TransformerConfig(
        vocab_size=7, mask_id=6, eos_id=5, width=16, layers=1, heads=4, kv_heads=2, ffn=24, qkv_bias=True
    )
    return Transformer(shape, stream(0, "test"))


@pytest.fixture
def folder(model, tmp_path):
    dtm.save_model(model, tmp_path / "model")
    return tmp_path / "model"


def edit(folder, change) -> None:
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors")


@pytest.mark.parametrize("tied", [False, True])
def test_a_saved_model_comes_back_bit_for_bit(tied, tmp_path):
    shape = TransformerConfig(vocab_size=7, mask_id=6, eos_id=5, width=16, layers=2, heads=2, tied=tied)
    model = Transformer(shape, stream(0, "test"))
    dtm.save_model(model, tmp_path)
    again = dtm.load_model(tmp_path)
    assert again.config == model.config
    assert again.state_dict().keys() == model.state_dict().keys()
    for name, value in model.state_dict().items():
        assert torch.equal(again.state_dict()[name], value)


def test_the_config_of_a_plain_shape_has_the_fields_of_0_1_and_those_are_enough(model, folder):
    shape = json.loads((folder / "config.json").read_text())
    assert shape == {
        "vocab_size": 7, "mask_id": 6, "eos_id": 5, "width": 16, "layers": 1, "heads": 4, "kv_heads": 2,
        "ffn": 24, "rope_base": 10_000.0, "norm_eps": 1e-5, "qkv_bias": True, "tied": False,
        "embedding_size": None, "shift": 0, "family": "native",
    }  # fmt: skip
    assert dtm.load_model(folder).config == model.config


def test_newer_fields_are_written_where_they_are_not_at_their_defaults(tmp_path):
    sizes = {"vocab_size": 7, "mask_id": 6, "eos_id": 5, "width": 16, "layers": 1, "heads": 2}
    shape = TransformerConfig(**sizes, qk_norm=True, attention_block=4)
    dtm.save_model(Transformer(shape, stream(0, "test")), tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert (written["qk_norm"], written["attention_block"], "head_width" in written) == (True, 4, False)
    assert dtm.load_model(tmp_path).config == shape


def test_another_head_width_comes_back(tmp_path):
    shape = TransformerConfig(vocab_size=7, mask_id=6, eos_id=5, width=16, layers=1, heads=3, head_width=10)
    dtm.save_model(Transformer(shape, stream(0, "test")), tmp_path)
    again = dtm.load_model(tmp_path)
    assert again.config == shape
    assert again.blocks[0].attention.out.weight.shape == (16, 30)


def test_a_model_stored_in_half_precision_comes_back_in_float32(model, tmp_path):
    dtm.save_model(model, tmp_path, torch.bfloat16)
    assert load_file(tmp_path / "model.safetensors")["embedding.weight"].dtype == torch.bfloat16
    again = dtm.load_model(tmp_path).embedding.weight
    assert again.dtype == torch.float32
    assert torch.equal(again, model.embedding.weight.bfloat16().float())


def test_a_missing_tensor_is_named(folder):
    edit(folder, lambda weights: weights.pop("blocks.0.up.weight"))
    with pytest.raises(CheckpointError, match=r"misses tensor 'blocks\.0\.up\.weight'"):
        dtm.load_model(folder)


def test_an_unexpected_tensor_is_named(folder):
    edit(folder, lambda weights: weights.update(extra=torch.zeros(2)))
    with pytest.raises(CheckpointError, match="unexpected tensor 'extra'"):
        dtm.load_model(folder)


def test_a_tensor_of_another_shape_is_named_with_both_shapes(folder):
    edit(folder, lambda weights: weights.update({"norm.weight": torch.ones(3)}))
    with pytest.raises(CheckpointError, match=r"'norm\.weight' is \(3,\), config\.json says \(16,\)"):
        dtm.load_model(folder)


def test_an_unknown_field_of_the_shape_names_its_neighbour(folder):
    shape = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(shape | {"headz": 2}))
    with pytest.raises(CheckpointError, match=r"unknown field 'headz'.*'heads'"):
        dtm.load_model(folder)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
@pytest.mark.parametrize("damage", ["missing", "truncated"])
def test_a_damaged_folder_is_named(folder, name, damage):
    path = folder / name
    content = path.read_bytes()
    path.unlink()
    if damage == "truncated":
        path.write_bytes(content[:20])
    with pytest.raises(CheckpointError, match=rf"no usable model in .*{name}"):
        dtm.load_model(folder)
