"""The cost of tuning: KL of a model to its base, and the evidence bound on text that it was not tuned on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random

import torch

from dtm.masking import Masking
from dtm.methods.mdm import mdm_loss
from dtm.models.denoiser import Denoiser
from dtm.random import stream
from dtm.records import MaskedStates, Sequences
from dtm.tasks.corpus.general import read_rows
from dtm.tasks.corpus.mixture import Mixture
from dtm.tasks.language.tokenizer import Chat

HELD_OUT_INSTRUCTIONS = "held_out_instructions.jsonl"
"""File in an adapted model's folder: held-out instructions with the answers of its source."""
DRAWS = 8
"""Masked states per sequence."""
ROWS = 64
"""Sequences per pass."""
LENGTH = 448
"""Tokens per held-out row."""


@torch.no_grad()
def mean_loss(
    loss: Callable[[MaskedStates], torch.Tensor], clean: Sequences, masking: Masking, mask_id: int
) -> float:
    """Return the mean loss over sequences, with `DRAWS` masked states each; the masks are always the same."""
    total = 0.0
    for draw in range(DRAWS):
        noise = stream(0, "cost masks", draw, device=clean.tokens.device)
        for start in range(0, len(clean), ROWS):
            part = clean.select(slice(start, start + ROWS))
            total += float(loss(masking.states(part, mask_id, noise))) * len(part)
    return total / DRAWS / len(clean)


def divergence(tuned: Denoiser, base: Denoiser, drawn: Sequences, masking: Masking) -> float:
    """Estimate the KL of the tuned model to its base on its own completions, in nats per sequence.

    The mask-count form of Σ_i E KL(π(· | x_t, i) ‖ π_0(· | x_t, i)), an upper bound on KL(ρ ‖ ρ_0).
    """

    def loss(states: MaskedStates) -> torch.Tensor:
        log_tuned, log_base = (
            model(states.tokens, states.attention, states.scored) for model in (tuned, base)
        )
        apart = (log_tuned.exp() * (log_tuned - log_base)).sum(-1)
        return (states.weight * apart).sum() / states.batch_rows

    return mean_loss(loss, drawn, masking, tuned.mask_id)


def bound(model: Denoiser, clean: Sequences, masking: Masking) -> float:
    """Return the evidence bound on clean sequences, in nats per sequence."""
    return mean_loss(lambda states: mdm_loss(model, states), clean, masking, model.mask_id)


def instructions(folder: Path, chat: Chat, eos_id: int, block: int | None) -> Sequences | None:
    """Read the held-out instructions in a model's folder as sequences; None without them."""
    path = folder / HELD_OUT_INSTRUCTIONS
    if not path.is_file():
        return None
    width = block or 1
    mixture = Mixture({}, chat, eos_id, 0, (LENGTH // width * width,), width)
    return mixture.sequences(read_rows(path), Random(0))[0]
