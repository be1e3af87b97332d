"""Exports: read back with equal outputs, readable by peft over a model with the hub's names, and merged."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import dtm
from dtm.errors import CheckpointError, ConfigError
from dtm.models import LoRA, Policy
from dtm.models.adapters import adapter_weights
from dtm.models.export import load_adapter, save_adapter, save_merged
from dtm.random import stream

FAMILIES = pytest.mark.parametrize("family", ["llada", "dream"])
PATHS = {"llada": "model.transformer.blocks.{}.ff_out", "dream": "model.layers.{}.mlp.down_proj"}


def tokens() -> torch.Tensor:
    return torch.randint(2, 18, (3, 8), generator=stream(0, "tokens"))


def trained(base, **settings):
    """A student whose adapter is no longer zero."""
    lora = LoRA(rank=4, alpha=6.0, **settings)
    student = Policy(base, lora=lora).student
    for name, value in adapter_weights(student).items():
        value.normal_(std=0.2, generator=stream(1, name))
    return student, lora


@FAMILIES
@pytest.mark.parametrize("targets", [("all",), ("published",)])
def test_an_adapter_comes_back_with_equal_outputs(write_hub, tmp_path, family, targets):
    base = dtm.load_model(write_hub(family))
    student, lora = trained(base, targets=targets, dropout=0.1)
    save_adapter(student.eval(), lora, tmp_path / "adapter", "org/name")
    again, shape = load_adapter(tmp_path / "adapter", base)
    assert torch.equal(again.logits(tokens()), student.logits(tokens()))
    assert not torch.equal(again.logits(tokens()), base.logits(tokens()))
    assert (shape.rank, shape.alpha, shape.dropout) == (4, 6.0, 0.1)
    linears = base.linears()
    assert shape.resolve(linears, family) == lora.resolve(linears, family)


def hub_skeleton(folder) -> nn.Module:
    """Modules named as in the hub's model, with the checkpoint's weights and no forward of their own."""
    root = nn.Module()
    for name, value in load_file(folder / "model.safetensors").items():
        *path, last = name.removesuffix(".weight").split(".")
        if name.endswith(".bias"):
            continue
        parent = root
        for part in path:
            if part not in parent._modules:
                parent.add_module(part, nn.Module())
            parent = parent.get_submodule(part)
        layer = nn.Linear(*reversed(value.shape), bias=False) if value.dim() == 2 else nn.Module()
        if value.dim() == 2:
            layer.weight.data = value
        parent.add_module(last, layer)
    return root


@FAMILIES
def test_peft_loads_the_adapter_over_the_hub_models_names(write_hub, tmp_path, family):
    peft = pytest.importorskip("peft")
    folder = write_hub(family)
    student, lora = trained(dtm.load_model(folder))
    save_adapter(student, lora, tmp_path / "adapter", folder)
    hub = peft.PeftModel.from_pretrained(hub_skeleton(folder), str(tmp_path / "adapter"))
    adapted = {name for name, module in hub.named_modules() if isinstance(module, peft.tuners.lora.LoraLayer)}
    assert len(adapted) == 14  # seven in each block, and not LLaDA's head, which is also called ff_out
    x = torch.randn(5, 48, generator=stream(0, "x"))
    for block in range(2):
        down = hub.get_submodule("base_model.model." + PATHS[family].format(block))
        torch.testing.assert_close(down(x), student.blocks[block].down(x))


def test_peft_matches_lladas_head_unless_it_is_excluded_as_the_error_says(write_hub, tmp_path):
    peft = pytest.importorskip("peft")
    folder = write_hub("llada")
    for excluded in (None, ["model.transformer.ff_out"]):
        config = peft.LoraConfig(r=2, target_modules=["q_proj", "ff_out"], exclude_modules=excluded)
        adapter = tmp_path / str(excluded is None)
        peft.get_peft_model(hub_skeleton(folder), config).save_pretrained(adapter)
    with pytest.raises(CheckpointError, match=r'exclude_modules=\["model\.transformer\.ff_out"\]'):
        load_adapter(tmp_path / "True", dtm.load_model(folder))
    assert load_adapter(tmp_path / "False", dtm.load_model(folder))[1].targets == ("q", "down")


@FAMILIES
@pytest.mark.parametrize("shards", [1, 3])
def test_merged_weights_are_a_hub_checkpoint_with_the_students_outputs(write_hub, tmp_path, family, shards):
    folder = write_hub(family, shards)
    (folder / "tokenizer_config.json").write_text("{}")
    student, lora = trained(dtm.load_model(folder))
    save_merged(student.eval(), lora, tmp_path / "merged", folder)
    assert {p.name for p in (tmp_path / "merged").iterdir()} == {p.name for p in folder.iterdir()}
    merged = dtm.load_model(tmp_path / "merged")
    torch.testing.assert_close(merged.logits(tokens()), student.logits(tokens()), atol=1e-4, rtol=0)


def test_merging_keeps_the_dtype_and_starts_from_the_full_weights(write_hub, tmp_path):
    pytest.importorskip("bitsandbytes")
    folder = write_hub("llada", dtype=torch.bfloat16)
    student, lora = trained(dtm.load_model(folder, dtype=torch.float32, nf4=True), targets=("up",))
    save_merged(student, lora, tmp_path / "merged", folder)
    before, after = (load_file(path / "model.safetensors") for path in (folder, tmp_path / "merged"))
    weights = adapter_weights(student)
    for name, value in after.items():
        assert value.dtype == torch.bfloat16
        expected = before[name]
        if "up_proj" in name:
            a, b = (weights[f"blocks.{name.split('.')[3]}.up.lora_{side}.weight"] for side in "AB")
            expected = (expected.float() + 1.5 * b @ a).bfloat16()
        assert torch.equal(value, expected)


def test_a_native_model_merges_in_its_own_layout(write_hub, tmp_path):
    dtm.save_model(dtm.load_model(write_hub("dream")), tmp_path / "native")
    student, lora = trained(dtm.load_model(tmp_path / "native"))
    save_merged(student.eval(), lora, tmp_path / "merged", tmp_path / "native")
    merged = dtm.load_model(tmp_path / "merged")
    torch.testing.assert_close(merged.logits(tokens()), student.logits(tokens()), atol=1e-4, rtol=0)


def test_merging_over_the_base_itself_is_refused(write_hub):
    folder = write_hub("llada")
    student, lora = trained(dtm.load_model(folder))
    with pytest.raises(ConfigError, match="the base itself"):
        save_merged(student, lora, folder, folder)


def test_a_damaged_adapter_is_named(write_hub, tmp_path):
    base, folder = dtm.load_model(write_hub("llada")), tmp_path / "adapter"
    with pytest.raises(CheckpointError, match="no usable adapter in"):
        load_adapter(folder, base)
    student, lora = trained(base)
    save_adapter(student, lora, folder, "org/name")
    config = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps(config | {"use_dora": True}))
    with pytest.raises(CheckpointError, match="'use_dora' is True"):
        load_adapter(folder, base)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    weights = load_file(folder / "adapter_model.safetensors")
    lost = "base_model.model.model.transformer.blocks.1.up_proj.lora_B.weight"
    save_file({k: v for k, v in weights.items() if k != lost}, folder / "adapter_model.safetensors")
    with pytest.raises(CheckpointError, match=rf"misses tensor '{lost}'"):
        load_adapter(folder, base)


def test_an_adapter_of_another_family_is_refused(write_hub, tmp_path):
    student, lora = trained(dtm.load_model(write_hub("llada")))
    save_adapter(student, lora, tmp_path / "adapter", "org/name")
    with pytest.raises(CheckpointError, match="no adapter of a dream model"):
        load_adapter(tmp_path / "adapter", dtm.load_model(write_hub("dream", name="other")))


def test_an_adapted_model_is_not_saved_as_a_plain_one(write_hub, tmp_path):
    student, _ = trained(dtm.load_model(write_hub("llada")))
    with pytest.raises(CheckpointError, match="save_adapter"):
        dtm.save_model(student, tmp_path / "out")
