"""The interface of rollout engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from dtm.engine.decoder import Decoder
from dtm.models.denoiser import Denoiser
from dtm.records import Completions, Cost, Prompts


@runtime_checkable
class RolloutEngine(Protocol):
    """Draw completions of prompts from a model with given weights."""

    decoder: Decoder
    """Settings of decoding."""

    def load(self, model: Denoiser) -> None:
        """Set the model that draws."""
        ...

    def generate(
        self, prompts: Prompts, completions: int, seed: int, rows: Sequence[int] | None = None
    ) -> Completions:
        """Complete each of N prompts K times; completions of a prompt are adjacent in the N·K rows.

        Equal seeds and weights give equal draws; different seeds give independent ones. With ``rows`` only
        these of the N·K rows are drawn and returned; their tokens do not change.
        """
        ...

    def cost(self) -> Cost:
        """Return the tokens and FLOPs of its passes since the last call; the caller measures the seconds."""
        ...
