"""How much memory a run will need, part by part, before anything is allocated.

Letters: P parameters, D width, F feed-forward width, H heads, K key-value heads, V rows of the head, r rank
of the adapters, T = rows · length tokens of a micro-batch, N positions whose logits are held together, b
bytes of the dtype computed in. Left out: workspaces of kernels and fragmentation.

A run trains and decodes in turns, so it needs what lasts (weights, adapters, optimiser, buffer) and the
larger of the two.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from dtm.models.adapters import LoRA
from dtm.models.families.base import PROJECTIONS
from dtm.models.merging import GROUPS
from dtm.models.shape import TransformerConfig

NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
"""A weight's four bits, its share of a block's one-byte scale, and of the float32 scale of 256 scales."""
_LOGIT_COPIES = 6
"""log π_θ, log π_a and π_a of the loss, and π_θ, π_a and a product in its metrics, all float32."""
_DRAW_COPIES = 4
"""In decoding: logits in the model's precision and in float32, log π, and noise or two copies of its bits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingShape:
    """What decides a run's memory, apart from the model's shape."""

    rows: int
    """Rows of a micro-batch."""
    length: int
    """Tokens of a row: prompt and completion."""
    scored: int
    """Scored positions of a row; with blocks, (B + 1) / 2 on average and B at most."""
    rollouts: int
    """Rollouts in the buffer."""
    lora: LoRA | None = None
    """The adapters; None: all weights are trained, and π_a is a copy."""
    ema: bool = False
    """Whether an average of the student is kept."""
    weight_bytes: int = 2
    """Bytes of a base weight: 4 float32, 2 bfloat16."""
    nf4: bool = False
    """Whether the projections of the blocks are in four bits."""
    compute_bytes: int = 2
    """b."""
    recompute: int = 0
    """Blocks that are recomputed in the backward pass."""
    compiled: bool = False
    """Whether blocks are compiled: products and nonlinearities are then worked out again, not kept."""
    held: int | None = None
    """Scored positions whose logits are held at a time; None: all of a micro-batch."""
    decoded: int = 0
    """Sequences decoded together."""
    candidates: int = 0
    """Positions whose logits decoding holds at a time."""
    cached: bool = False
    """Whether keys and values are kept while a block is decoded."""
    merged: bool = False
    """Whether π_a is run with its adapter merged into copies of the weights."""
    fp8: bool = False
    """Whether rollouts are drawn by a copy of π_a in eight bits."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of each part."""

    weights: int
    """The base, or the student where all weights are trained."""
    adapters: int
    """The adapters of student, π_a and average, or copies of all weights; and π_a's merged layers."""
    optimizer: int
    """Gradient and Adam's two moments, for every trained weight."""
    activations: int
    """What the forward pass of a micro-batch keeps for the backward pass."""
    logits: int
    """Distributions over the vocabulary at the scored positions."""
    rollouts: int
    """What decoding needs beside the weights: keys and values, one block's states, logits."""
    buffer: int
    """The replay buffer."""

    @property
    def lasting(self) -> int:
        """What is there all the time."""
        return self.weights + self.adapters + self.optimizer + self.buffer

    @property
    def total(self) -> int:
        """What lasts, and the larger of training and decoding."""
        return self.lasting + max(self.activations + self.logits, self.rollouts)

    def __str__(self) -> str:
        parts = {**asdict(self), "total": self.total}
        return "\n".join(f"{name:<12}{size / 2**30:9.2f} GiB" for name, size in parts.items())


def estimate(model: TransformerConfig, run: TrainingShape) -> Memory:
    """The memory of one training step."""
    further = 2 if run.ema else 1  # π_a, and the average
    if run.lora is None:
        trained = parameters(model)
        copies = further * trained * run.weight_bytes
        state = 3 * trained * run.weight_bytes
    else:
        trained = adapter_parameters(model, run.lora)
        copies = (1 + further) * trained * 4  # adapters are float32
        copies += merged_bytes(model, run.lora, run.weight_bytes) if run.merged else 0
        state = 3 * trained * 4
    return Memory(
        weights=weights(model, run.weight_bytes, run.nf4),
        adapters=copies + (fp8_bytes(model) if run.fp8 else 0),
        optimizer=state,
        activations=activations(model, run),
        logits=_LOGIT_COPIES * 4 * min(run.rows * run.scored, run.held or run.rows * run.scored) * model.rows,
        rollouts=rollouts(model, run),
        buffer=run.rollouts * (run.length * (8 + 8 + 4 + 1 + 1) + 4 + 8),
    )


FIRST_HALF = ("q", "k", "v")
SECOND_HALF = ("out", "gate", "up", "down")
"""Projections of a block's halves; of the last block the second runs at scored positions alone."""


def projection_shapes(model: TransformerConfig) -> dict[str, tuple[int, int]]:
    """Inputs and outputs of each projection of a block, by its native name."""
    width, narrow = model.width, model.width // model.heads * (model.kv_heads or model.heads)
    shapes = {"q": (width, width), "k": (width, narrow), "v": (width, narrow), "out": (width, width)}
    shapes |= {"gate": (width, model.ffn), "up": (width, model.ffn), "down": (model.ffn, width)}
    assert shapes.keys() == PROJECTIONS.keys()
    return shapes


def projection_parameters(model: TransformerConfig) -> int:
    """Weights of the projections of all blocks, which are what NF4 quantises."""
    return model.layers * sum(inputs * outputs for inputs, outputs in projection_shapes(model).values())


def parameters(model: TransformerConfig) -> int:
    """P: the projections, their biases, two norms a block and one at the end, embedding and head."""
    shapes = projection_shapes(model)
    biases = sum(shapes[name][1] for name in "qkv") if model.qkv_bias else 0
    tables = (1 if model.tied else 2) * model.rows * model.width
    return projection_parameters(model) + model.layers * (biases + 2 * model.width) + model.width + tables


def weights(model: TransformerConfig, bytes_each: int, nf4: bool = False) -> int:
    """P · bytes, or with NF4 about half a byte for each weight of a projection."""
    quantised = projection_parameters(model) if nf4 else 0
    return (parameters(model) - quantised) * bytes_each + round(quantised * NF4_BYTES)


def adapter_parameters(model: TransformerConfig, lora: LoRA) -> int:
    """r · (inputs + outputs) for each adapted projection of each block."""
    shapes = projection_shapes(model)
    adapted = lora.projections(model.family)
    return model.layers * lora.rank * sum(sum(shapes[name]) for name in adapted)


def merged_bytes(model: TransformerConfig, lora: LoRA, bytes_each: int) -> int:
    """Copies of the weights that adapters are merged into, and of those that become one matrix with them."""
    shapes, adapted = projection_shapes(model), set(lora.projections(model.family))
    copied = [shapes[name] for names in GROUPS.values() if adapted & set(names) for name in names]
    return model.layers * sum(inputs * outputs for inputs, outputs in copied) * bytes_each


def fp8_bytes(model: TransformerConfig) -> int:
    """Copies of the projections in eight bits, and a float32 scale for each of their outputs."""
    scales = model.layers * sum(outputs for _, outputs in projection_shapes(model).values())
    return projection_parameters(model) + 4 * scales


def cache_bytes(model: TransformerConfig, rows: int, length: int, bytes_each: int) -> int:
    """Keys and values: 2 · layers · D K/H for each position."""
    narrow = model.width // model.heads * (model.kv_heads or model.heads)
    return 2 * model.layers * narrow * rows * length * bytes_each


def rollouts(model: TransformerConfig, run: TrainingShape) -> int:
    """Decoding, beside the weights: at most 2 D + 3 F of a block's states for each token live together."""
    states = run.decoded * run.length * run.compute_bytes * (2 * model.width + 3 * model.ffn)
    logits = _DRAW_COPIES * 4 * run.candidates * model.rows
    kept = cache_bytes(model, run.decoded, run.length, run.compute_bytes) if run.cached else 0
    return states + logits + kept


def activations(model: TransformerConfig, run: TrainingShape) -> int:
    """T · b · (6 D + 2 D K/H + 4 F + r · targets) for each block; D for a recomputed one, and one block more.

    Of a block autograd keeps: the inputs of both norms and what they return, q, k, v and the attention's
    result (6 D and 2 D K/H), the gate before and after its nonlinearity, the other branch and their
    product (4 F; compiled, the two branches alone: 2 F), and A x of every adapter (r each). Norms that are
    themselves trained keep 2 D more. The second half of the last block keeps nothing but scored positions.
    """
    token = run.rows * run.length * run.compute_bytes
    narrow = model.width // model.heads * (model.kv_heads or model.heads)
    own = [model.width, model.width]  # the two norms
    if run.lora is not None:
        adapted = set(run.lora.projections(model.family))
        own = [run.lora.rank * len(adapted & set(half)) for half in (FIRST_HALF, SECOND_HALF)]
    branches = 2 if run.compiled and not run.nf4 else 4  # layers in four bits are not compiled
    first = 4 * model.width + 2 * narrow + own[0]
    second = 2 * model.width + branches * model.ffn + own[1]
    again = min(run.recompute, model.layers)
    blocks = (model.layers - again + (again > 0)) * token * (first + second) + again * token * model.width
    unscored = run.rows * max(run.length - run.scored, 0) * run.compute_bytes
    return blocks - unscored * second * (again < model.layers)
