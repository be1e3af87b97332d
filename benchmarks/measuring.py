"""What benchmarks of large models share: a clock that waits for the device, its memory, a results file."""

from __future__ import annotations

import gc
import itertools
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

GIB = 2**30

Stamp = Any
"""A moment: seconds of the host's clock, or an event of the device."""


@dataclass
class Bench:
    """A device, and the results so far."""

    device: torch.device
    out: Path | None
    results: dict[str, Any] = field(default_factory=dict)
    begin: float = field(default_factory=time.perf_counter)
    rate: float = 0.0
    """Operations a second of a large matrix product."""

    @property
    def on_gpu(self) -> bool:
        """Whether there is bfloat16, a compiler for the blocks and memory to be counted."""
        return self.device.type == "cuda"

    @property
    def dtype(self) -> torch.dtype:
        """The precision of weights and passes."""
        return torch.bfloat16 if self.on_gpu else torch.float32

    def say(self, text: str) -> None:
        """A line with the time since the start."""
        print(f"[{time.perf_counter() - self.begin:6.1f} s] {text}", flush=True)

    def keep(self, **values: Any) -> None:
        """Add to the results, and to their file."""
        self.results |= values
        if self.out is not None:
            self.out.parent.mkdir(parents=True, exist_ok=True)
            self.out.write_text(json.dumps(self.results, indent=2) + "\n", encoding="utf-8")

    def autocast(self) -> torch.autocast:
        """The precision that a training run computes in."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.on_gpu)

    def wait(self) -> None:
        """Until the device has done everything."""
        if self.on_gpu:
            torch.cuda.synchronize()

    def stamp(self) -> Stamp:
        """The present moment of the device's time; nothing waits for it."""
        if not self.on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, stamps: Sequence[Stamp]) -> list[float]:
        """Seconds from each stamp to the next."""
        self.wait()
        return [
            after - before if isinstance(before, float) else before.elapsed_time(after) / 1e3
            for before, after in itertools.pairwise(stamps)
        ]

    def seconds(self, work: Callable[[], object], repeats: int, warm: int = 1) -> float:
        """The median of some calls, after others to warm up."""
        times = []
        for _ in range(warm + repeats):
            self.wait()
            start = time.perf_counter()
            work()
            self.wait()
            times.append(time.perf_counter() - start)
        return statistics.median(times[warm:])

    @contextmanager
    def counted_memory(self) -> Iterator[dict[str, float | None]]:
        """The peak of the work inside, and what was there before, which should be nothing."""
        peak: dict[str, float | None] = {"before": None, "allocated": None, "reserved": None}
        self.empty()
        if self.on_gpu:
            peak["before"] = torch.cuda.memory_allocated() / GIB
        yield peak
        if self.on_gpu:
            peak["allocated"] = torch.cuda.max_memory_allocated() / GIB
            peak["reserved"] = torch.cuda.max_memory_reserved() / GIB
        self.empty()

    def empty(self) -> None:
        """Give back what nobody uses."""
        gc.collect()
        if self.on_gpu:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def matrix_product(self) -> float:
        """Operations a second of a large matrix product, which the floors are taken at.

        It is that of a cool card. A second of the same products later the limit is the power that it may
        draw, and that rate is kept beside the other: what runs for long can hardly be faster.
        """
        size, many = (8192, 700) if self.on_gpu else (256, 3)
        matrix = torch.randn(size, size, device=self.device, dtype=self.dtype)
        result = torch.empty_like(matrix)

        def products() -> None:
            for _ in range(many):
                torch.mm(matrix, matrix, out=result)

        work = 2 * size**3
        self.rate = work / self.seconds(lambda: torch.mm(matrix, matrix, out=result), 10, warm=3)
        sustained = many * work / self.seconds(products, 1)
        self.say(f"matrix product: {self.rate / 1e12:.3g} TFLOP/s, {sustained / 1e12:.3g} after a second")
        self.keep(matmul_tflops=self.rate / 1e12, matmul_tflops_sustained=sustained / 1e12)
        return self.rate
