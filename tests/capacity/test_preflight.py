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
from dtm.engine import LocalEngine
from dtm.errors import ConfigError
from dtm.loop.assemble import assemble
from dtm.loop.plan import training_plan
from dtm.models.shape import TransformerConfig


def with_shape(config, shape):
    """An assembly that takes its base to have another shape."""
    assembly = assemble(config)
    assembly.__dict__["shape"] = shape
    return assembly


def test_a_run_passes_if_it_fits_exactly_and_not_with_a_byte_less(tiny, monkeypatch):
    assembly = assemble(tiny)
    needed = assembly.memory.total
    monkeypatch.setattr(preflight, "available", lambda device: needed)
    assembly.preflight()
    monkeypatch.setattr(preflight, "available", lambda device: needed - 1)
    with pytest.raises(ConfigError, match="this run needs about"):
        assembly.preflight()


def test_too_little_memory_is_told_by_part_with_remedies(tiny, monkeypatch, tmp_path):
    monkeypatch.setattr(preflight, "available", lambda device: 1000)
    with pytest.raises(ConfigError, match=r"needs about .* of cpu are free: weights .*micro-batch 1"):
        dtm.train(tiny, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_large_model_is_not_started_on_a_cpu_by_accident(tiny, monkeypatch):
    large = TransformerConfig(
        vocab_size=52, mask_id=51, eos_id=49, width=4096, layers=32, heads=32, ffn=12288
    )
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assembly = with_shape(replace(tiny, device="auto"), large)
    with pytest.raises(ConfigError, match=r"7\.0 billion weights needs a GPU.*--device cpu"):
        assembly.preflight()


def test_memory_grows_with_the_micro_batch(tiny):
    small, large = (
        assemble(replace(tiny, optimizer=replace(tiny.optimizer, micro_batch=rows))).memory
        for rows in (2, 16)
    )
    assert large.activations == 8 * small.activations
    assert large.weights == small.weights


@pytest.mark.parametrize(("size", "said"), [(3 * 2**19, "1.5 MiB"), (25 * 2**30, "25.0 GiB")])
def test_sizes_are_said_as_a_person_would(size, said):
    assert preflight.format_bytes(size) == said


def test_as_few_blocks_as_must_be_are_recomputed(tiny, monkeypatch):
    deep = TransformerConfig(vocab_size=52, mask_id=51, eos_id=49, width=32, layers=6, heads=2, ffn=48)

    def assembly(recompute):
        return with_shape(replace(tiny, model=replace(tiny.model, recompute=recompute)), deep)

    def blocks(recompute, loaded=0):
        made = assembly(recompute)
        return made.recomputed(deep, made._training_shape(deep), loaded)

    needs = [assembly(blocks).memory.total for blocks in range(7)]
    assert needs[1:] == sorted(needs[1:], reverse=True)
    for count in (2, 4, 6):
        monkeypatch.setattr(preflight, "available", lambda device, n=count: needs[n] / 0.9 + 1)
        assert blocks("auto") == count
    monkeypatch.setattr(preflight, "available", lambda device: 1)
    assert blocks("auto") == 6
    assert blocks("auto", loaded=2 * needs[0]) == 0
    settings = {"all": 6, "none": 0, 3: 3, 99: 6}
    assert {name: blocks(name) for name in settings} == settings


def test_a_trainer_recomputes_what_the_configuration_says_and_gets_the_same_weights(tiny, make_trainer):
    trainers = [make_trainer(replace(tiny, model=replace(tiny.model, recompute=n))) for n in ("none", "all")]
    for trainer in trainers:
        trainer._advance()
    plain, lean = (trainer.policy.student for trainer in trainers)
    assert (plain.recompute, lean.recompute) == (0, 1)
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), lean.parameters(), strict=True))


def test_decoding_in_larger_batches_needs_more(tiny):
    small, large, cached = (
        assemble(replace(tiny, decoding=replace(tiny.decoding, **changes))).memory.rollouts
        for changes in ({"batch": 8}, {"batch": 16}, {"batch": 16, "cache": "block"})
    )
    assert large == 2 * small
    assert cached > large


def test_eight_bits_are_counted_and_refused_where_layers_do_not_fit(tiny):
    decoding = replace(tiny.decoding, fp8=True)
    eight, plain = assemble(replace(tiny, decoding=decoding)), assemble(tiny)
    eight.preflight()
    shape = eight.shape
    more = eight.memory.adapters - plain.memory.adapters
    assert more == fp8_bytes(shape)
    odd = replace(shape, ffn=40)
    with pytest.raises(ConfigError, match=r"decoding.fp8 .* gate has 32 inputs and 40 outputs"):
        preflight.check_fp8(odd, torch.device("cpu"))
    with_shape(tiny, odd).preflight()  # nobody asked for eight bits


def test_a_plan_says_that_eight_bits_decode_and_a_finished_run_is_measured_with_them(
    tiny, finished, monkeypatch
):
    loaded, load = [], LocalEngine.load
    monkeypatch.setattr(
        LocalEngine, "load", lambda self, model: (loaded.append(model.fp8), load(self, model))
    )
    config = replace(tiny, decoding=replace(tiny.decoding, fp8=True), audit=AuditConfig())
    plan = training_plan(assemble(config))
    assert "projections in eight bits" in plan["decoding"]
    assert "decoded again exactly" in plan["audit"]
    for each in (config, tiny):
        measure(assemble(each), finished.model)
    assert loaded == [True, False]
