"""`dtm eval BASE --adapter ADAPTER`: adapters under the hub's names, written without the package's tables."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

import dtm
from dtm.cli import main
from dtm.errors import CheckpointError
from dtm.evaluation.subject import ModelFiles, Subject
from dtm.random import stream

RANK, ALPHA = 2, 3
LLADA = {f"model.transformer.blocks.{n}.{name}" for n in (0, 1) for name in ("q_proj", "attn_out", "ff_out")}
QWEN = {f"model.layers.{n}.{name}" for n in (0, 1) for name in ("self_attn.q_proj", "mlp.down_proj")}
PATHS = {"llada": LLADA, "dream": QWEN, "a2d-qwen3": QWEN}


@pytest.fixture
def base_of(write_talking, write_source):
    """A random base with a tokenizer, in the layout of the hub."""

    def write(family: str):
        if family != "a2d-qwen3":
            return write_talking(family)
        folder = write_source("qwen3")
        config = json.loads((folder / "config.json").read_text()) | {"model_type": family}
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    return write


def write_adapter(folder, base, paths, rank: int = RANK, **changes):
    """A PEFT folder, spelled out."""
    folder.mkdir()
    noise, weights = stream(0, "adapter"), load_file(base / "model.safetensors")
    stored = {}
    for path in sorted(paths):
        outputs, inputs = weights[f"{path}.weight"].shape
        for side, shape in (("A", (rank, inputs)), ("B", (outputs, rank))):
            stored[f"base_model.model.{path}.lora_{side}.weight"] = torch.randn(shape, generator=noise)
    save_file(stored, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA", "r": RANK, "lora_alpha": ALPHA, "lora_dropout": 0.05, "bias": "none",
        "base_model_name_or_path": str(base), "target_modules": ["q_proj"], "task_type": "CAUSAL_LM",
    }  # fmt: skip
    (folder / "adapter_config.json").write_text(json.dumps(config | changes))
    return folder


def asked_of(family: str) -> dict[str, object]:
    return {"mask_id": 4, "attention": "full"} if family == "a2d-qwen3" else {}


@pytest.mark.parametrize("family", PATHS)
def test_an_adapter_with_the_hubs_names_is_added_to_its_base(base_of, tmp_path, family):
    base = base_of(family)
    adapter = write_adapter(tmp_path / "adapter", base, PATHS[family])
    weights, added = load_file(base / "model.safetensors"), load_file(adapter / "adapter_model.safetensors")
    for path in PATHS[family]:
        a, b = (added[f"base_model.model.{path}.lora_{side}.weight"] for side in "AB")
        weights[f"{path}.weight"] += ALPHA / RANK * b @ a
    model = dtm.models.export.load_adapter(adapter, dtm.load_model(base, **asked_of(family)))[0]
    save_file(weights, base / "model.safetensors")
    expected = dtm.load_model(base, **asked_of(family))
    tokens = torch.randint(5, 90, (2, 9), generator=stream(0, "tokens"))
    logits = expected.logits(tokens)
    # Sums are rounded in another order, and how much that matters differs between processors.
    torch.testing.assert_close(model.logits(tokens), logits, atol=1e-4 * float(logits.abs().max()), rtol=0)


def test_eval_measures_a_base_with_an_adapter_over_it(base_of, tmp_path, capsys):
    base = base_of("llada")
    adapter = write_adapter(tmp_path / "adapter", base, LLADA)
    (tmp_path / "countdown_cd3_test.jsonl").write_text(json.dumps({"input": "20,2,3", "output": "25"}))
    start = ["eval", str(base), "--task", "countdown", "--protocol", "spg", "--length", "32"]
    rest = ["--data-dir", str(tmp_path), "--device", "cpu", "--json"]
    assert main([*start, "--adapter", str(adapter), *rest, str(tmp_path / "tuned.json")]) == 0
    assert main([*start, *rest, str(tmp_path / "base.json")]) == 0
    tuned, plain = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("tuned", "base"))
    assert tuned["fingerprint"]["model"] != plain["fingerprint"]["model"]
    assert tuned["fingerprint"]["names"]["base"] == str(base)
    assert "was made for" not in capsys.readouterr().err


def test_an_adapter_for_another_model_of_the_same_shape_is_warned_of(base_of, tmp_path):
    base = base_of("llada")
    adapter = write_adapter(tmp_path / "adapter", base, LLADA, base_model_name_or_path="GSAI-ML/LLaDA-1.5")
    with pytest.warns(dtm.errors.DtmWarning, match=r"was made for GSAI-ML/LLaDA-1\.5, and is used with"):
        source = ModelFiles.find(str(base)).with_adapter(str(adapter))
    assert Subject.load(source, "cpu").model.logits(torch.full((1, 4), 7)).isfinite().all()


def test_a_wrong_pairing_is_refused_by_name_and_by_shape(base_of, write_hub, tmp_path):
    base = base_of("llada")
    other = write_hub("dream", name="dream")
    by_name = write_adapter(tmp_path / "by-name", other, QWEN)
    with pytest.raises(
        CheckpointError, match=r"no adapter of a llada model.*'base_model\.model\.model\.layers"
    ):
        ModelFiles.find(str(base)).with_adapter(str(by_name))
    by_shape = write_adapter(tmp_path / "by-shape", base, LLADA, rank=5)
    with pytest.raises(
        CheckpointError, match=r"lora_A\.weight' is \(5, 32\).*needs \(2, 32\): the adapter belongs"
    ):
        ModelFiles.find(str(base)).with_adapter(str(by_shape))
    with_head = write_adapter(tmp_path / "head", base, LLADA | {"model.transformer.ff_out"})
    with pytest.raises(
        CheckpointError, match=r"also adapts the head, model\.transformer\.ff_out.*exclude_modules"
    ):
        ModelFiles.find(str(base)).with_adapter(str(with_head))


def test_an_adapter_needs_a_base_and_a_task(base_of, tmp_path, capsys):
    base = base_of("llada")
    adapter = write_adapter(tmp_path / "adapter", base, LLADA)
    assert main(["eval", str(base), "--adapter", str(adapter)]) == 2
    assert "--adapter needs --task" in capsys.readouterr().err
    with pytest.raises(dtm.DtmError, match="has an adapter already"):
        ModelFiles.find(str(adapter)).with_adapter(str(adapter))


def test_damaged_numbers_of_an_adapter_are_named(base_of, tmp_path):
    base = base_of("llada")
    adapter = write_adapter(tmp_path / "adapter", base, LLADA, lora_alpha="16")
    with pytest.raises(CheckpointError, match="'lora_alpha' is '16', not a number"):
        ModelFiles.find(str(base)).with_adapter(str(adapter))
