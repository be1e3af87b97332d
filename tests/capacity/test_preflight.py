"""What does not fit is refused before anything is loaded, and the refusal says what would help."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import dtm
from dtm.api import measure
from dtm.capacity import preflight
from dtm.capacity.memory import fp8_bytes
from dtm.config import AuditConfig
from dtm.errors import ConfigError
from dtm.loop import build
from dtm.loop.plan import training_plan
from dtm.models.shape import TransformerConfig


def test_a_run_passes_if_it_fits_exactly_and_not_with_a_byte_less(tiny, monkeypatch):
    task = build.build_task(tiny)
    needed = preflight.memory(tiny, task, preflight.model_shape(tiny, task)).total
    monkeypatch.setattr(preflight, "available", lambda device: needed)
    assert preflight.check(tiny, task) is None
    monkeypatch.setattr(preflight, "available", lambda device: needed - 1)
    with pytest.raises(ConfigError, match="this run needs about"):
        preflight.check(tiny, task)


def test_too_little_memory_is_told_by_part_with_remedies(tiny, monkeypatch, tmp_path):
    monkeypatch.setattr(preflight, "available", lambda device: 1000)
    with pytest.raises(ConfigError, match=r"needs about .* of cpu are free: weights .*micro-batch 1"):
        dtm.train(tiny, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_large_model_is_not_started_on_a_cpu_by_accident(tiny, monkeypatch):
    large = TransformerConfig(
        vocab_size=52, mask_id=51, eos_id=49, width=4096, layers=32, heads=32, ffn=12288
    )
    monkeypatch.setattr(preflight, "model_shape", lambda config, task: large)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    task = build.build_task(tiny)
    with pytest.raises(ConfigError, match=r"7\.0 billion weights needs a GPU.*--device cpu"):
        preflight.check(replace(tiny, device="auto"), task)


def test_memory_grows_with_the_micro_batch(tiny):
    task = build.build_task(tiny)
    shape = preflight.model_shape(tiny, task)
    small, large = (
        preflight.memory(replace(tiny, optimizer=replace(tiny.optimizer, micro_batch=rows)), task, shape)
        for rows in (2, 16)
    )
    assert large.activations == 8 * small.activations
    assert large.weights == small.weights


@pytest.mark.parametrize(("size", "said"), [(3 * 2**19, "1.5 MiB"), (25 * 2**30, "25.0 GiB")])
def test_bytes_are_formatted_with_a_unit(size, said):
    assert preflight.format_bytes(size) == said


def test_as_few_blocks_as_must_be_are_recomputed(tiny, monkeypatch):
    deep = TransformerConfig(vocab_size=52, mask_id=51, eos_id=49, width=32, layers=6, heads=2, ffn=48)
    task = build.build_task(tiny)

    def config(recompute, **changes):
        return replace(tiny, model=replace(tiny.model, recompute=recompute), **changes)

    needs = [preflight.memory(config(blocks), task, deep).total for blocks in range(7)]
    assert needs[1:] == sorted(needs[1:], reverse=True)
    for blocks in (2, 4, 6):
        monkeypatch.setattr(preflight, "available", lambda device, n=blocks: needs[n] / 0.9 + 1)
        assert preflight.recomputed_blocks(config("auto"), task, deep) == blocks
    monkeypatch.setattr(preflight, "available", lambda device: 1)
    assert preflight.recomputed_blocks(config("auto"), task, deep) == 6
    assert preflight.recomputed_blocks(config("auto"), task, deep, loaded=2 * needs[0]) == 0
    settings = {"all": 6, "none": 0, 3: 3, 99: 6}
    assert {name: preflight.recomputed_blocks(config(name), task, deep) for name in settings} == settings


def test_a_trainer_recomputes_what_the_configuration_says_and_gets_the_same_weights(tiny, make_trainer):
    trainers = [make_trainer(replace(tiny, model=replace(tiny.model, recompute=n))) for n in ("none", "all")]
    for trainer in trainers:
        trainer._advance()
    plain, lean = (trainer.policy.student for trainer in trainers)
    assert (plain.recompute, lean.recompute) == (0, 1)
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), lean.parameters(), strict=True))


def test_decoding_in_larger_batches_needs_more(tiny):
    task = build.build_task(tiny)
    shape = preflight.model_shape(tiny, task)
    small, large, cached = (
        preflight.memory(replace(tiny, decoding=replace(tiny.decoding, **changes)), task, shape).rollouts
        for changes in ({"batch": 8}, {"batch": 16}, {"batch": 16, "cache": "block"})
    )
    assert large == 2 * small
    assert cached > large


def test_eight_bits_are_counted_and_refused_where_layers_do_not_fit(tiny):
    decoding = replace(tiny.decoding, fp8=True)
    config, task = replace(tiny, decoding=decoding), build.build_task(tiny)
    preflight.check(config, task)
    shape = preflight.model_shape(config, task)
    more = preflight.memory(config, task, shape).adapters - preflight.memory(tiny, task, shape).adapters
    assert more == fp8_bytes(shape)
    odd = replace(shape, ffn=40)
    with pytest.raises(ConfigError, match=r"decoding.fp8 .* gate has 32 inputs and 40 outputs"):
        preflight.check_fp8(config, odd, torch.device("cpu"))
    preflight.check_fp8(tiny, odd, torch.device("cpu"))


def test_a_plan_says_that_eight_bits_decode_and_a_finished_run_is_measured_with_them(tiny, finished):
    config = replace(tiny, decoding=replace(tiny.decoding, fp8=True), audit=AuditConfig())
    assert "its projections in eight bits" in training_plan(config)["decoding"]
    assert "decoded again exactly" in training_plan(config)["audit"]
    low, own = measure(config, finished.model, None), measure(tiny, finished.model, None)
    assert low.completions != own.completions
    again = measure(replace(config, decoding=tiny.decoding), finished.model, None)
    assert again.completions == own.completions
