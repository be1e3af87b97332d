r"""The interpolant in the paper's own form (A): a time t, reveal times T^i, and the hazard weight.

Kept to show that form (C) (`mask_count`) estimates the same integral. Do not train with it: under
α(t) = t the weight 1/(1 − t) has infinite variance (docs/method.md, section 2).
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from dtm.padding import prompt_width
from dtm.records import MaskedStates, Sequences
from dtm.verify.schedules import Schedule


def hazard_states(
    clean: Sequences,
    mask_id: int,
    schedule: Schedule,
    time: Float[Tensor, " B"],
    uniforms: Float[Tensor, "B L"],
    block: int | None = None,
) -> MaskedStates:
    r"""Draw x_t at global times t, with row weight λ_SAR(t) = M λ(u)  [eqs. 3, 32, 33].

    The active block is b = ⌊M t⌋ at local time u = M t − b; a position of it is masked while
    u < T^i, where α(T^i) is the given uniform. Completions must be a whole number of blocks.
    """
    index = clean.is_completion.long().cumsum(1) - 1
    length = clean.is_completion.sum(1)
    size = length if block is None else torch.full_like(length, block)
    blocks = length // size
    active_block = (blocks * time).long().clamp(max=blocks - 1)
    local = blocks * time - active_block
    position_block = index // size[:, None]
    active = clean.is_completion & (position_block == active_block[:, None])
    eligible = active & (schedule.alpha(local)[:, None] < uniforms)
    later = clean.is_completion & (position_block > active_block[:, None])
    return MaskedStates(
        tokens=torch.where(eligible | later, mask_id, clean.tokens),
        clean=clean.tokens,
        attention=clean.attention,
        eligible=eligible,
        row_weight=blocks * schedule.hazard(local),
        row_length=length,
        length=clean.is_completion.shape[1] - int(prompt_width(clean.is_completion)),
        batch_rows=len(clean),
        batch_length=length.sum(),
    )
