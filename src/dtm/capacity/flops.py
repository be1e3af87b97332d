"""Multiplications and additions of a pass: what no implementation can do without.

Letters: P weights of the projections, P₂ those of the last block's second half (its output and feed-forward
layer), D width, L positions attended to, V rows of the head. A multiplication and its addition are two. Left
out: norms, nonlinearities and softmax, a few percent.
"""

from __future__ import annotations

from dtm.capacity.memory import (
    SECOND_HALF,
    adapter_parameters,
    projection_parameters,
    projection_shapes,
)
from dtm.models.adapters import LoRA
from dtm.models.denoiser import Denoiser
from dtm.models.shape import TransformerConfig
from dtm.models.transformer import Transformer


def pass_flops(model: TransformerConfig, computed: int | float, attended: int, scored: int | float) -> float:
    """A pass over ``computed`` positions: 2 (P − P₂) + 4 · layers · L D each, 2 (P₂ + V D) at scored ones."""
    shapes = projection_shapes(model)
    half = sum(inputs * outputs for inputs, outputs in (shapes[name] for name in SECOND_HALF))
    position = 2 * (projection_parameters(model) - half) + 4 * model.layers * attended * model.width
    return float(computed * position + 2 * scored * (half + model.rows * model.width))


def adapter_flops(model: TransformerConfig, lora: LoRA, computed: int, scored: int | float) -> float:
    """What adapters add to a pass: two for each of their weights and positions, split like P and P₂."""
    shapes, names = projection_shapes(model), set(lora.projections(model.family))
    half = lora.rank * sum(sum(shapes[name]) for name in names & set(SECOND_HALF))
    return float(2 * (computed * (adapter_parameters(model, lora) - half) + scored * half))


def model_flops(model: Denoiser, computed: int, attended: int, scored: int) -> int:
    """The same for any denoiser; of one whose shape is unknown, two for each weight and position."""
    if isinstance(model, Transformer):
        return int(pass_flops(model.config, computed, attended, scored))
    return 2 * computed * sum(parameter.numel() for parameter in model.parameters())


def rollout_flops(
    model: TransformerConfig,
    prompt: int,
    completion: int,
    block: int,
    tokens_per_step: int,
    refresh: int | None,
    together: int = 1,
) -> float:
    """A whole completion: one pass a step, over everything or, with a cache, mostly over the block alone.

    ``refresh`` is the blocks from one pass over everything to the next, None without a cache; other blocks
    begin with a pass over themselves and the block before. With a cache ``together`` completions of a prompt
    share the first pass of all, apart from the scored positions.
    """
    length, blocks = prompt + completion, -(-completion // block)
    steps = -(-completion // tokens_per_step)
    scored = completion * (block / tokens_per_step + 1) / 2  # the masked positions of all steps
    computed: float = steps * length
    if refresh is not None:
        whole = -(-blocks // refresh)
        first = whole * length + (blocks - whole) * (2 * block + model.shift)
        shared = length * (1 - 1 / together)
        computed = first - shared + (steps - blocks) * (block + model.shift)
    return pass_flops(model, computed, length, scored)


def update_flops(
    model: TransformerConfig,
    length: int,
    scored: int | float,
    lora: LoRA | None,
    recompute: int | float,
    merged: bool = False,
) -> float:
    """A row of an update: passes of student and π_a, and the backward pass.

    Frozen weights need one product in the backward pass, trained ones two; ``recompute`` is the share of the
    blocks whose forward pass is made again. With ``merged`` weights π_a has no products of adapters.
    """
    forward = pass_flops(model, length, length, scored)
    blocks = forward - 2 * scored * model.rows * model.width
    if lora is None:
        return 4 * forward + recompute * blocks
    adapters = adapter_flops(model, lora, length, scored)
    return 3 * forward + recompute * blocks + (3 + (not merged) + recompute) * adapters
