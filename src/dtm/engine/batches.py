"""More prompts than fit a batch: the plain loop batch by batch, or the ragged one."""

from __future__ import annotations

from collections.abc import Callable

import torch

from dtm.engine.ragged import decode_rows
from dtm.engine.sampler import Decoder, decode
from dtm.models.denoiser import Denoiser
from dtm.records import Completions, Prompts


def decode_all(
    denoiser: Denoiser,
    prompts: Prompts,
    length: int,
    decoder: Decoder,
    generator: torch.Generator,
    batch: int,
    between: Callable[[], None] = lambda: None,
) -> Completions:
    """Complete every prompt, at most ``batch`` together; ``between`` is called now and then."""
    if decoder.is_ragged:
        seed = generator.initial_seed()
        return decode_rows(denoiser, prompts, length, decoder, seed, batch, between=between)
    parts = []
    for start in range(0, len(prompts), batch):
        between()
        part = prompts.select(range(start, min(start + batch, len(prompts))))
        parts.append(decode(denoiser, part, length, decoder, generator))
    names = ("tokens", "attention", "is_completion", "revealed_at")
    return Completions(*(torch.cat([getattr(part, name) for part in parts]) for name in names))
