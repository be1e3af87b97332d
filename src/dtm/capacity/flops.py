"""FLOPs of rollouts and updates, from those of a forward pass (`TransformerConfig.flops`)."""

from __future__ import annotations

from dataclasses import replace

from dtm.capacity.memory import adapted_linears
from dtm.models.adapters import LoRA
from dtm.models.linears import position_weights
from dtm.models.shape import TransformerConfig


def adapter_flops(model: TransformerConfig, lora: LoRA, computed: int, scored: int | float) -> float:
    """FLOPs that adapters add to a forward pass: two per weight and position."""
    linears = adapted_linears(model, lora)
    factors = [replace(linear, outputs=lora.rank) for linear in linears]  # A
    factors += [replace(linear, inputs=lora.rank) for linear in linears]  # B
    all_positions, scored_only = position_weights(factors, model.layers)
    return float(2 * (computed * all_positions + scored * scored_only))


def rollout_flops(
    model: TransformerConfig,
    prompt: int,
    completion: int,
    block: int,
    tokens_per_step: int,
    refresh: int | None,
    together: int = 1,
    prefix: bool = False,
) -> float:
    """FLOPs of a whole completion: one pass per step over all positions or, with a cache, over one block.

    ``refresh`` is the number of blocks between passes over all positions, None without a cache; other blocks
    start with a pass over themselves and the previous block. With a cache, ``together`` completions of a
    prompt share their first pass, apart from the scored positions. With the ``prefix`` cache of block-causal
    attention the first pass is over the prompt and one block; a position attends to what precedes the end of
    its block, on average to the prompt and half of the completion.
    """
    length, blocks = prompt + completion, -(-completion // block)
    steps = -(-completion // tokens_per_step)
    scored = completion * (block / tokens_per_step + 1) / 2  # the masked positions of all steps
    computed: float = steps * length
    attended = length
    if prefix:
        begins = 1 if block == model.shift == 1 else 2 * block
        computed = (
            (prompt + block) / together + (blocks - 1) * begins + (steps - blocks) * (block + model.shift)
        )
        attended = prompt + (completion + block) // 2
    if refresh is not None:
        whole = -(-blocks // refresh)
        first = whole * length + (blocks - whole) * (2 * block + model.shift)
        shared = length * (1 - 1 / together)
        computed = first - shared + (steps - blocks) * (block + model.shift)
    return model.flops(computed, attended, scored)


def update_flops(
    model: TransformerConfig,
    length: int,
    scored: int | float,
    lora: LoRA | None,
    recompute: int | float,
    merged: bool = False,
    doubled: bool = False,
) -> float:
    """FLOPs of one row of an update: forward passes of student and π_a, and the backward pass.

    ``length`` is the number of positions of a row. That every position attends to all of them is an upper
    bound where attention is block-causal.

    The backward pass has one product per frozen weight and two per trained weight. ``recompute`` is the share
    of blocks that are recomputed. With ``merged`` weights π_a has no products of adapters. ``doubled``: x_t
    and x_1 run side by side, twice the positions, each of which meets two halves.
    """
    length *= 1 + doubled
    forward = model.flops(length, length, scored)
    blocks = forward - 2 * scored * model.rows * model.width
    if lora is None:
        return 4 * forward + recompute * blocks
    adapters = adapter_flops(model, lora, length, scored)
    return 3 * forward + recompute * blocks + (3 + (not merged) + recompute) * adapters
