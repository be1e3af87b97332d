"""Peak memory of a run: on a GPU as allocated by torch, on a CPU the resident set."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import torch


def forget_peak(device: torch.device) -> None:
    """Reset the peak on a GPU; the peak of a process's resident set cannot be reset."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory(device: torch.device) -> int:
    """Peak memory so far, in bytes."""
    return int(torch.cuda.max_memory_allocated(device)) if device.type == "cuda" else _peak_resident()


def _peak_resident() -> int:
    """The process's own peak; on Linux getrusage includes that of its parent before exec."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):  # not Linux
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most if sys.platform == "darwin" else 1024 * most  # macOS counts bytes
