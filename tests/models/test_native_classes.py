"""Exports in the hub's names, read by `transformers`' own classes and by PEFT."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

import dtm
from dtm.models import LoRA, Policy
from dtm.models.export import load_adapter, save_adapter, save_merged
from dtm.models.families.settings import Asked
from dtm.random import stream
from published import BLOCKS, MASK, keywords

transformers = pytest.importorskip("transformers")
CLASSES = {"sdar": "Qwen3", "sdar_moe": "Qwen3Moe", "a2d-llama": "Llama"}
LENGTH = 9


@pytest.fixture
def tuned(write_published, write_source):
    """A base in the hub's layout, what must be said about it, and a policy with a random adapter over it."""

    def make(family: str):
        if family == "a2d-llama":
            folder, known = (
                write_source("llama", tie_word_embeddings=True),
                {"mask_id": 4, "attention": "full"},
            )
            config = json.loads((folder / "config.json").read_text()) | {"model_type": family}
            (folder / "config.json").write_text(json.dumps(config))
        else:
            folder, known = write_published(family), keywords(family)
        policy = Policy(dtm.load_model(folder, **known), lora=LoRA(rank=2, alpha=3.0))
        with torch.no_grad():
            for parameter in policy.trained():
                parameter.normal_(0, 0.2, generator=stream(0, "adapter"))
        return folder, known, policy

    return make


def native_class(folder, family: str):
    """`transformers`' model of a folder that has the names of its class."""
    name = CLASSES[family]
    copy = folder.with_name(f"{folder.name}-for-transformers")
    shutil.copytree(folder, copy)
    kind = {"Qwen3": "qwen3", "Qwen3Moe": "qwen3_moe", "Llama": "llama"}[name]
    config = json.loads((copy / "config.json").read_text())
    config |= {"model_type": kind, "architectures": [f"{name}ForCausalLM"]}
    (copy / "config.json").write_text(json.dumps(config))
    made = getattr(transformers, f"{name}ForCausalLM").from_pretrained(copy, dtype=torch.float32)
    return made.eval()


def their_logits(model, tokens, block: int | None):
    """Under full or block-causal attention, as a mask of scores."""
    place = torch.arange(tokens.shape[1])
    seen = torch.ones(LENGTH, LENGTH, dtype=torch.bool)
    if block is not None:
        seen = place // block <= place[:, None] // block
    scores = torch.zeros(1, 1, LENGTH, LENGTH).masked_fill(~seen, torch.finfo(torch.float32).min)
    with torch.no_grad():
        mask = scores.expand(len(tokens), -1, -1, -1)
        return model(input_ids=tokens, attention_mask=mask, position_ids=place[None]).logits


def tokens_of() -> torch.Tensor:
    return torch.randint(3, MASK, (2, LENGTH), generator=stream(0, "tokens"))


@pytest.mark.parametrize("family", CLASSES)
def test_merged_weights_are_read_by_the_native_class(tuned, tmp_path, family):
    folder, known, policy = tuned(family)
    asked = Asked(
        mask_token=str(known["mask_id"]),
        attention=known.get("attention", "stored"),
        block=known.get("block"),
    )
    save_merged(policy.student, policy.lora, tmp_path / "merged", folder, asked)
    found = their_logits(native_class(tmp_path / "merged", family), tokens_of(), BLOCKS.get(family))
    torch.testing.assert_close(found, policy.student.logits(tokens_of()), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", CLASSES)
def test_peft_puts_the_adapter_over_the_native_class(tuned, tmp_path, family):
    peft = pytest.importorskip("peft")
    folder, _, policy = tuned(family)
    save_adapter(policy.student, policy.lora, tmp_path / "adapter", folder)
    model = peft.PeftModel.from_pretrained(native_class(folder, family), str(tmp_path / "adapter"))
    found = their_logits(model, tokens_of(), BLOCKS.get(family))
    torch.testing.assert_close(found, policy.student.logits(tokens_of()), atol=1e-4, rtol=1e-4)
    untuned = their_logits(native_class_again(folder), tokens_of(), BLOCKS.get(family))
    assert (found - untuned).abs().max() > 1e-2


def native_class_again(folder):
    """The same model without the adapter."""
    copy = folder.with_name(f"{folder.name}-for-transformers")
    return transformers.AutoModelForCausalLM.from_pretrained(copy, dtype=torch.float32).eval()


@pytest.mark.parametrize("family", CLASSES)
def test_an_adapter_that_peft_made_loads_natively(tuned, tmp_path, family):
    peft = pytest.importorskip("peft")
    folder, known, _ = tuned(family)
    torch.manual_seed(0)
    names = ["q_proj", "v_proj"]
    config = peft.LoraConfig(r=3, lora_alpha=6, target_modules=names, init_lora_weights=False)
    model = peft.get_peft_model(native_class(folder, family), config)
    model.save_pretrained(tmp_path / "peft")
    student, lora = load_adapter(tmp_path / "peft", dtm.load_model(folder, **known))
    assert (lora.rank, lora.targets) == (3, ("q", "v"))
    found = student.logits(tokens_of())
    expected = their_logits(model, tokens_of(), BLOCKS.get(family))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("family", ["llada2", "llada_moe", "fast_dllm"])
def test_adapters_of_other_families_come_back_and_merge(write_published, tmp_path, family):
    folder = write_published(family)
    policy = Policy(dtm.load_model(folder, **keywords(family)), lora=LoRA(rank=2))
    with torch.no_grad():
        for parameter in policy.trained():
            parameter.normal_(0, 0.2, generator=stream(0, "adapter"))
    expected = policy.student.logits(tokens_of())
    save_adapter(policy.student, policy.lora, tmp_path / "adapter", folder)
    student, _ = load_adapter(tmp_path / "adapter", dtm.load_model(folder, **keywords(family)))
    torch.testing.assert_close(student.logits(tokens_of()), expected)
    known = keywords(family)
    asked = Asked(mask_token=str(MASK), attention=known.get("attention", "stored"), block=known.get("block"))
    save_merged(policy.student, policy.lora, tmp_path / "merged", folder, asked)
    again = dtm.load_model(tmp_path / "merged")  # dtm.json states what was asked for
    torch.testing.assert_close(again.logits(tokens_of()), expected, atol=1e-4, rtol=1e-4)
