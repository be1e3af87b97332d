"""Device, precision and compilation of a run's models."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch

from dtm.errors import require

Precision = Literal["float32", "bfloat16"]


@dataclass(frozen=True, slots=True)
class Placement:
    """Device and arithmetic of a run, resolved once."""

    device: torch.device
    precision: Precision
    compiles: bool = False
    """Whether torch.compile fuses the model's blocks."""

    @classmethod
    def resolve(
        cls,
        device: str = "auto",
        precision: Precision | Literal["auto"] = "auto",
        compile: Literal["auto", "on", "off"] = "off",
        nf4: bool = False,
    ) -> Placement:
        """Resolve "auto"; refuse a missing device or an unsupported precision.

        Compilation is off by itself for weights in four bits.
        """
        name = device
        if name == "auto":
            name = "cuda" if torch.cuda.is_available() else "cpu"
        require(name in ("cpu", "cuda"), f"device must be auto, cpu or cuda, got {name!r}")
        require(name == "cpu" or torch.cuda.is_available(), "device is cuda, but torch sees no CUDA device")
        require(
            name == "cuda" or precision != "bfloat16",
            "precision bfloat16 needs a GPU: many CPUs cannot do its arithmetic. Use --precision float32.",
        )
        if precision == "auto":
            precision = "bfloat16" if name == "cuda" else "float32"
        fitting = name == "cuda" and not nf4
        return cls(torch.device(name), precision, compile == "on" or (compile == "auto" and fitting))

    @property
    def is_half(self) -> bool:
        """Whether passes run in bfloat16."""
        return self.precision == "bfloat16"

    @property
    def dtype(self) -> torch.dtype:
        """The precision as a dtype."""
        return torch.bfloat16 if self.is_half else torch.float32

    def autocast(self) -> torch.autocast:
        """A context in which models run in the precision."""
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.is_half)

    def __str__(self) -> str:
        return f"{self.device}, {self.precision}"
