"""The most memory that a run has held: on the GPU what torch has allocated, on a CPU the resident set."""

from __future__ import annotations

import resource
import sys

import torch


def forget_peak(device: torch.device) -> None:
    """Begin anew on a GPU; a process cannot forget the most that it has held."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory(device: torch.device) -> int:
    """Bytes, at the highest so far."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most  # macOS counts bytes, Linux kilobytes
