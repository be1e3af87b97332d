"""Check that a run fits this machine, before gigabytes are loaded."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import torch

from dtm.capacity.fit import fewest_recomputed
from dtm.capacity.memory import Memory, TrainingShape
from dtm.errors import ConfigError
from dtm.models.fp8 import require_multiples, require_products
from dtm.models.shape import TransformerConfig

LARGE = 1_000_000_000
"""Number of weights above which a model runs on a CPU only with --device cpu."""


def check_device(parameters: int, device: torch.device, asked_for: bool) -> None:
    """Raise an error for a large model on a CPU, unless the CPU was chosen."""
    if device.type == "cpu" and not asked_for and parameters > LARGE:
        raise ConfigError(
            f"a model of {parameters / 1e9:.1f} billion weights needs a GPU, and torch sees none. "
            "To try it on the CPU all the same, add --device cpu --precision float32."
        )


def check_memory(needed: Memory, device: torch.device, has_replicas: bool = False) -> None:
    """Raise an error for a run that needs more memory than is free.

    ``has_replicas``: the weights are sharded over some of the processes only.
    """
    free = available(device)
    if needed.total > free:
        parts = ", ".join(
            f"{name} {format_bytes(getattr(needed, name))}" for name in Memory.__dataclass_fields__
        )
        first = "--distributed.shard full with a larger --distributed.shard-size, " if has_replicas else ""
        raise ConfigError(
            f"this run needs about {format_bytes(needed.total)}, and {format_bytes(free)} of {device.type} "
            f"are free: {parts}. Rollouts and updates take turns, so only the larger of them counts. "
            f"Smaller: {first}fewer --replay.prompts, --optimizer.micro-batch 1, --model.recompute all, "
            "--model.nf4, --decoding.batch 8, --adapter.rank 32; `dtm fit` says what fits."
        )


def check_fp8(shape: TransformerConfig, device: torch.device) -> None:
    """Raise an error for decoding in eight bits if the device or the model's shape does not allow it."""
    require_products(device)
    for linear in filter(lambda linear: linear.is_plain, shape.linears()):
        require_multiples(linear.inputs, linear.outputs, linear.name)


def recomputed_blocks(
    wanted: int | Literal["auto", "all", "none"],
    shape: TransformerConfig,
    run: TrainingShape,
    device: torch.device,
    loaded: int = 0,
) -> int:
    """Number of blocks under activation checkpointing; auto: the fewest that leave a tenth of memory free.

    ``loaded`` bytes of the model are in memory already.
    """
    if isinstance(wanted, int):
        return min(wanted, shape.layers)
    if wanted != "auto":
        return shape.layers if wanted == "all" else 0
    return fewest_recomputed(shape, run, int(0.9 * (available(device) + loaded)))


def available(device: torch.device) -> int:
    """Return the free bytes; on a GPU with those that torch has reserved and does not use."""
    if device.type == "cuda":
        held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0]) + held
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):  # not Linux: all memory there is
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def format_bytes(size: int) -> str:
    """Format bytes in a readable unit.

    >>> format_bytes(3 * 2**19), format_bytes(25 * 2**30)
    ('1.5 MiB', '25.0 GiB')
    """
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size / 2**20:.1f} MiB"
