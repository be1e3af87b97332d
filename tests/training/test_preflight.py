"""What does not fit is refused before anything is loaded, and the refusal says what would help."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import dtm
from dtm.errors import ConfigError
from dtm.models.transformer import TransformerConfig
from dtm.training import build, preflight


def test_a_run_that_fits_is_let_through(tiny):
    preflight.check(tiny, build.build_task(tiny))


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
def test_sizes_are_said_as_a_person_would(size, said):
    assert preflight.spoken_size(size) == said
