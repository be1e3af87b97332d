"""Completing prompts of any lengths, so that what an item gets does not depend on the others.

Batches are made of neighbours in length, whatever the order of the items, and results go back in that order.
With one row a batch there is no padding and no other row: the numbers are the item's own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from dtm.decoding import Decoder, decode
from dtm.models.denoiser import Denoiser
from dtm.random import stream
from dtm.records import Completions, Prompts
from dtm.tasks.language.task import pad_left

Done = Callable[[int, int], None]
"""Hears how many items a batch has finished, and how many there are in all."""


def complete(
    denoiser: Denoiser,
    prompts: Sequence[Sequence[int]],
    length: int,
    decoder: Decoder,
    batch: int,
    device: torch.device,
    done: Done = lambda rows, items: None,
) -> Int[Tensor, "N C"]:
    """``length`` tokens for each prompt."""
    order = sorted(range(len(prompts)), key=lambda row: (len(prompts[row]), list(prompts[row])))
    written = torch.empty(len(prompts), length, dtype=torch.long)
    for start in range(0, len(order), batch):
        rows = order[start : start + batch]
        finished = complete_batch(denoiser, [prompts[row] for row in rows], length, decoder, device)
        written[rows] = finished.tokens[:, -length:].cpu()
        done(len(rows), len(prompts))
    return written


def complete_batch(
    denoiser: Denoiser,
    prompts: Sequence[Sequence[int]],
    length: int,
    decoder: Decoder,
    device: torch.device,
    seed: int = 0,
) -> Completions:
    """One batch, with the step at which each token was revealed."""
    tokens, attention = pad_left(prompts, denoiser.eos_id)
    asked = Prompts(tokens, attention, list(prompts)).to(device)
    return decode(denoiser, asked, length, decoder, stream(seed, "completion", device=device))
