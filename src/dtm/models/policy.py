"""The models of a run: the trained student π_θ, the frozen teacher π_a, and the student's average."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from dtm.models.denoiser import Denoiser
from dtm.models.transformer import Transformer
from dtm.records import MaskedStates


class Policy:
    """Student, π_a and optionally the exponential moving average of the student, as full copies."""

    def __init__(self, base: Denoiser, ema: float | None = None) -> None:
        self.student = base
        self.teacher = _frozen(base)
        self.ema = ema
        self.average = None if ema is None else _frozen(base)
        self.forward: Callable[..., Tensor] = base
        """How the student is called; a data-parallel trainer puts its wrapper here."""

    def log_pi(self, states: MaskedStates) -> Float[Tensor, "N V"]:
        """log π_θ at the scored positions, row by row."""
        return self.forward(states.tokens, states.attention, states.eligible)

    @torch.no_grad()
    def log_pi_a(self, states: MaskedStates) -> Float[Tensor, "N V"]:
        """log π_a at the scored positions, row by row."""
        return self.teacher(states.tokens, states.attention, states.eligible)

    def compile(self) -> None:
        """Compile the models that are run."""
        for model in (self.student, self.teacher):
            if isinstance(model, Transformer):
                model.compile_blocks()

    @torch.no_grad()
    def track(self) -> None:
        """Move the average towards the student: average ← ema · average + (1 − ema) · student."""
        if self.average is not None and self.ema is not None:
            for average, student in zip(self.average.parameters(), self.student.parameters(), strict=True):
                average.lerp_(student, 1 - self.ema)

    def promote(self) -> None:
        """End a phase: the student (or its average) becomes π_{a+h}, and all models start from it."""
        weights = (self.student if self.average is None else self.average).state_dict()
        self.student.load_state_dict(weights)
        self.teacher.load_state_dict(weights)
        if self.average is not None:
            self.average.load_state_dict(weights)


def _frozen(model: Denoiser) -> Denoiser:
    return copy.deepcopy(model).requires_grad_(False).eval()
