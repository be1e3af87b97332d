"""The plain sampler that the engine must equal: one row, one pass over the whole row for each step.

It reads the engine's noise functions and nothing else of its loop.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from dtm.engine import Decoder
from dtm.engine.decoder import quotas
from dtm.engine.noise import candidate_keys, exponential, row_keys, uniform
from dtm.models import Denoiser


class Completed(NamedTuple):
    """The completion of one row, without its prompt."""

    tokens: list[int]
    revealed_at: list[int]
    log_prob: list[float]


@torch.no_grad()
def complete(
    model: Denoiser, prompt: torch.Tensor, length: int, decoder: Decoder, seed: int, row: int
) -> Completed:
    """Complete an unpadded prompt of shape [P] as row number ``row`` of a call with this seed."""
    tokens = torch.cat([prompt, torch.full((length,), model.mask_id)])
    steps, log_probs = [-1] * length, [0.0] * length
    size, taken = decoder.block or length, 0
    for block, start in enumerate(range(0, length, size)):
        stop = min(start + size, length)
        for step, quota in enumerate(quotas(stop - start, decoder.tokens_per_step)):
            masked = [i for i in range(start, stop) if steps[i] < 0]
            if not masked:
                break
            log_pi = model(tokens[None], None, torch.tensor(masked) + len(prompt))
            keys = row_keys(seed, torch.tensor([row]), torch.tensor([block]))
            keys = candidate_keys(keys, torch.tensor([step]), size)[0, torch.tensor(masked) - start]
            drawn = log_pi.argmax(-1)
            if decoder.temperature > 0:
                gumbel = -exponential(keys, log_pi.shape[1], log_pi.dtype).log()
                drawn = (log_pi / decoder.temperature + gumbel).argmax(-1)
            score = decoder.order.score(log_pi, drawn, uniform(keys).to(log_pi.dtype))
            chosen = set(score.argsort(descending=True)[:quota].tolist())
            if decoder.certainty is not None:
                chosen |= set((log_pi.exp().amax(-1) >= decoder.certainty).nonzero().flatten().tolist())
            for i in chosen:
                tokens[len(prompt) + masked[i]] = drawn[i]
                steps[masked[i]], log_probs[masked[i]] = taken, float(log_pi[i, drawn[i]])
            taken += 1
    return Completed(tokens[len(prompt) :].tolist(), steps, log_probs)
