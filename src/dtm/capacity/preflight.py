"""Whether a run fits this machine, asked before gigabytes are loaded."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import torch

from dtm.capacity.fit import fewest_recomputed
from dtm.capacity.memory import Memory, TrainingShape, estimate, parameters, projection_shapes
from dtm.config import RunConfig
from dtm.engine.draws import head_rows
from dtm.errors import ConfigError
from dtm.loop import build
from dtm.loop.annealing import phase_prompts
from dtm.methods.c_dtm import HELD
from dtm.models.families import read_shape
from dtm.models.fp8 import require_multiples, require_products
from dtm.models.shape import TransformerConfig
from dtm.models.storage import check_weights
from dtm.random import stream
from dtm.runs.folder import RunFolder
from dtm.tasks.base import Task

LARGE = 1_000_000_000
"""A model of more weights is not started on a CPU unless the CPU is asked for."""


def check(config: RunConfig, task: Task) -> None:
    """Refuse a run whose base is incomplete, or that needs a GPU or more memory than there is."""
    if has_base(config):
        check_weights(build.base_folder(config))
    shape, device = model_shape(config, task), build.build_device(config)
    size = parameters(shape)
    check_fp8(config, shape, device)
    if device.type == "cpu" and config.device == "auto" and size > LARGE:
        raise ConfigError(
            f"a model of {size / 1e9:.1f} billion weights needs a GPU, and torch sees none. "
            "To try it on the CPU all the same, add --device cpu --precision float32."
        )
    needed, there = memory(config, task, shape), available(device)
    if needed.total > there:
        parts = ", ".join(
            f"{name} {spoken_size(getattr(needed, name))}" for name in Memory.__dataclass_fields__
        )
        raise ConfigError(
            f"this run needs about {spoken_size(needed.total)}, and {spoken_size(there)} of {device.type} "
            f"are free: {parts}. "
            "Smaller: --optimizer.micro-batch 1, --model.recompute all, --model.nf4, --decoding.batch 8, "
            "--adapter.rank 32; `dtm fit` says what fits."
        )


def check_fp8(config: RunConfig, shape: TransformerConfig, device: torch.device) -> None:
    """Refuse decoding in eight bits where the device or the model's shape does not allow it."""
    if config.decoding.fp8:
        require_products(device)
        for name, sides in projection_shapes(shape).items():
            require_multiples(*sides, name)


def model_shape(config: RunConfig, task: Task) -> TransformerConfig:
    """The base's shape from its ``config.json``, or the one that `dtm pretrain` would make."""
    if not has_base(config):
        return build.model_shape(config.model, task)
    return read_shape(build.base_folder(config))[1]


def has_base(config: RunConfig) -> bool:
    """Whether there is a base to start from: one that is named, or the recipe's latest pretraining."""
    return config.model.base is not None or RunFolder.pretrained(config.recipe) is not None


def memory(config: RunConfig, task: Task, shape: TransformerConfig) -> Memory:
    """Bytes of each part of a run, estimated."""
    run = _shape_of_run(config, task, shape)
    return estimate(shape, replace(run, recompute=recomputed_blocks(config, task, shape)))


def recomputed_blocks(config: RunConfig, task: Task, shape: TransformerConfig, loaded: int = 0) -> int:
    """How many blocks are worked out again in the backward pass; auto: as few as leave a tenth of the memory.

    ``loaded`` are bytes of the model that have been taken already.
    """
    wanted = config.model.recompute
    if isinstance(wanted, int):
        return min(wanted, shape.layers)
    if wanted != "auto":
        return shape.layers if wanted == "all" else 0
    room = 0.9 * (available(build.build_device(config)) + loaded)
    return fewest_recomputed(shape, _shape_of_run(config, task, shape), int(room))


def _shape_of_run(config: RunConfig, task: Task, shape: TransformerConfig) -> TrainingShape:
    half = build.precision(config, build.build_device(config)) == "bfloat16"
    lora, optimizer = build.build_lora(config), config.optimizer
    decoder, together = build.build_decoder(config.decoding), config.decoding.batch
    width = task.prompts("train", 16, stream(0, "forecast")).tokens.shape[1]
    block, written = task.completion_length, config.decoding.block or task.completion_length
    if config.objective.baseline is None:
        block = build.block_size(config.objective.block, config.decoding) or block
    return TrainingShape(
        rows=optimizer.rows,
        length=width + task.completion_length,
        scored=(block + 1) // 2 if config.objective.baseline is None else block,
        rollouts=phase_prompts(config) * config.replay.completions,
        lora=lora,
        # A reference π_0 takes as much as an average, which baselines do not keep.
        ema=optimizer.ema is not None or config.objective.baseline is not None,
        weight_bytes=2 if half and lora is not None else 4,
        nf4=config.model.nf4,
        compute_bytes=2 if half else 4,
        compiled=build.compiles(config, build.build_device(config)),
        held=max(1, HELD // shape.vocab_size) if config.objective.baseline is None else None,
        decoded=together,
        candidates=min(together * written, head_rows(shape.vocab_size)),
        cached=decoder.cache == "block",
        merged=config.adapter.merge,
        fp8=config.decoding.fp8,
    )


def available(device: torch.device) -> int:
    """Bytes that are free; on a GPU also those that torch holds and does not use."""
    if device.type == "cuda":
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + held
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):  # not Linux: what there is in all
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def spoken_size(size: int) -> str:
    """Bytes for a person.

    >>> spoken_size(3 * 2**19), spoken_size(25 * 2**30)
    ('1.5 MiB', '25.0 GiB')
    """
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"
