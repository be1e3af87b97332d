"""Estimate the memory of a run, part by part, before anything is allocated.

A mixture of experts holds all its weights in memory; a token passes through the active ones.

Letters: P parameters, K key-value heads, E head width, r rank of the adapters. `activations` counts the
tensors of the blocks. Not included: workspaces of kernels, gradients inside one block, and fragmentation.

Training and decoding alternate, so a run needs its persistent parts (weights, adapters, optimiser, buffer)
and the larger of the two.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from dtm.capacity.activations import activations, pass_bytes, stack_bytes
from dtm.models.adapters import LoRA
from dtm.models.linears import Linear, merge_groups
from dtm.models.shape import TransformerConfig

NF4_BYTES = 0.5 + 1 / 64 + 4 / (64 * 256)
"""Bytes per weight in NF4: four bits, 1/64 of a one-byte scale, 1/(64 · 256) of a float32 scale of scales."""
NF4_STACK_BYTES = 0.5 + 4 / 64
"""Bytes per weight of experts in four bits, whose scales are float32."""
_LOGIT_COPIES = 6
"""Float32 tensors: log π_θ, log π_a and π_a in the loss; π_θ, π_a and a product in its metrics."""
_DRAW_COPIES = 4
"""Tensors in decoding without compilation, four bytes per number: two of logits, log π, noise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingShape:
    """Settings that determine the memory of a run, apart from the model's shape."""

    rows: int
    """Rows of a micro-batch."""
    length: int
    """Tokens per row: prompt and completion."""
    prompt: int | None = None
    """Tokens of a prompt, for the first pass with the prefix cache; None: that pass runs over whole rows."""
    scored: int
    """Scored positions per row; with blocks of B tokens, (B + 1) / 2 on average and B at most."""
    rollouts: int
    """Rollouts in the buffer."""
    lora: LoRA | None = None
    """The adapters; None: all weights are trained, and π_a is a copy."""
    ema: bool = False
    """Whether an exponential moving average of the student is kept."""
    weight_bytes: int = 2
    """Bytes per base weight: 4 float32, 2 bfloat16."""
    nf4: bool = False
    """Whether the linear layers are in four bits."""
    compute_bytes: int = 2
    """b, bytes per number in the compute dtype."""
    recompute: int = 0
    """Blocks that are recomputed in the backward pass (activation checkpointing)."""
    doubled: bool = False
    """Whether updates run x_t and x_1 side by side, rows of twice the length."""
    padded: bool = True
    """Whether prompts differ in length, so that attention has a mask."""
    compiled: bool = False
    """Whether blocks are compiled: elementwise products are then recomputed, not kept."""
    held: int | None = None
    """Scored positions whose logits are held at once; None: all of a micro-batch."""
    decoded: int = 0
    """Sequences decoded together."""
    together: int = 1
    """Completions per prompt among the decoded sequences, which share the first pass; 1 in evaluation."""
    candidates: int = 0
    """Positions whose logits decoding holds at once."""
    cached: bool = False
    """Whether keys and values are cached in decoding; the prefix cache too has room for whole rows."""
    merged: bool = False
    """Whether π_a runs with its adapter merged into copies of the weights."""
    fp8: bool = False
    """Whether rollouts use a copy of π_a in eight bits."""
    shards: int = 1
    """Processes of a shard group, over which weights, copies and optimiser state are sharded; 1: each process
    keeps all."""


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
    """Tensors that the forward pass of a micro-batch keeps for the backward pass."""
    logits: int
    """Distributions over the vocabulary at the scored positions."""
    rollouts: int
    """Decoding, without the weights: keys and values, one block's states, logits; of sharded weights, π_a
    as a whole."""
    buffer: int
    """The replay buffer."""

    @property
    def persistent(self) -> int:
        """Persistent parts: weights, adapters, optimiser state and buffer."""
        return self.weights + self.adapters + self.optimizer + self.buffer

    @property
    def total(self) -> int:
        """Peak memory: the persistent parts, and the larger of training and decoding."""
        return self.persistent + max(self.activations + self.logits, self.rollouts)

    def __str__(self) -> str:
        parts = {**asdict(self), "total": self.total}
        return "\n".join(f"{name:<12}{size / 2**30:9.2f} GiB" for name, size in parts.items())


def estimate(model: TransformerConfig, run: TrainingShape) -> Memory:
    """Estimate the bytes of each part of a run's memory."""
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
    shared_out = run.shards > 1
    return Memory(
        weights=weights(model, run.weight_bytes, run.nf4) // run.shards,
        adapters=copies // run.shards + (fp8_bytes(model) if run.fp8 else 0),
        optimizer=state // run.shards,
        activations=activations(model, run) + (gathered(model, run.weight_bytes) if shared_out else 0),
        logits=_LOGIT_COPIES * 4 * min(run.rows * run.scored, run.held or run.rows * run.scored) * model.rows,
        rollouts=rollouts(model, run) + (weights(model, run.weight_bytes) if shared_out else 0),
        buffer=run.rollouts * (run.length * (8 + 8 + 4 + 1 + 1) + 4 + 8),
    )


def gathered(model: TransformerConfig, bytes_each: int) -> int:
    """Bytes of sharded weights that a micro-batch gathers.

    Embedding, head and last norm of student and π_a, and the gradient of the student's; and two blocks, the
    current and the next, with the gradient of one.
    """
    outer = (1 if model.tied else 2) * model.rows * model.width + model.width
    block = (parameters(model) - outer) // model.layers
    return (3 * outer + 3 * block) * bytes_each


def linear_weights(model: TransformerConfig) -> int:
    """Number of weights of all linear layers in `TransformerConfig.linears`."""
    return sum(linear.weights for linear in model.linears())


def parameters(model: TransformerConfig) -> int:
    """P: linear layers, their biases, two norms per block and one at the end, embedding and head.

    Norms of queries and keys have E weights each, and experts may have a bias.
    """
    biases = sum(linear.count * linear.outputs for linear in model.linears() if linear.bias)
    if model.experts is not None and model.experts.bias != "none":
        biases += model.experts.count * len(model.experts.layers)
    norms = (2 * model.layers + 1) * model.width + 2 * model.layers * model.head_size * model.qk_norm
    tables = (1 if model.tied else 2) * model.rows * model.width
    return linear_weights(model) + biases + norms + tables


def active_parameters(model: TransformerConfig) -> int:
    """Number of parameters that a token passes through: of a block's experts only the chosen ones."""
    idle = sum(
        len(linear.indices[0]) * (linear.stacked - linear.active) * linear.inputs * linear.outputs
        for linear in model.linears()
    )
    return parameters(model) - idle


def weights(model: TransformerConfig, bytes_each: int, nf4: bool = False) -> int:
    """P · bytes, or with NF4 about half a byte per weight of a linear layer; routers are float32."""
    total = parameters(model) * bytes_each
    for linear in model.linears():
        if linear.exact:
            total += linear.weights * (4 - bytes_each)
        elif nf4:
            low = NF4_BYTES if linear.stacked == 1 else NF4_STACK_BYTES
            total += round(linear.weights * (low - bytes_each))
    return total


def adapter_parameters(model: TransformerConfig, lora: LoRA) -> int:
    """r · (inputs + outputs) for each adapted layer."""
    return sum(
        linear.count * lora.rank * (linear.inputs + linear.outputs) for linear in adapted_linears(model, lora)
    )


def adapted_linears(model: TransformerConfig, lora: LoRA) -> tuple[Linear, ...]:
    """Linear layers of the model that the adapters change."""
    return lora.resolve(model.linears(), model.family)


def merged_bytes(model: TransformerConfig, lora: LoRA, bytes_each: int) -> int:
    """Bytes of the copies of weights for merged adapters, whole fused matrices included."""
    changed = set(adapted_linears(model, lora))
    groups = merge_groups(model.linears()).values()
    copied = [linear for group in groups if changed & set(group) for linear in group]
    return sum(linear.weights for linear in copied) * bytes_each


def fp8_bytes(model: TransformerConfig) -> int:
    """Bytes of the eight-bit copies of linear layers (no routers or experts), with a scale per output."""
    plain = [linear for linear in model.linears() if linear.is_plain]
    return sum(linear.weights + 4 * linear.count * linear.outputs for linear in plain)


def cache_bytes(model: TransformerConfig, rows: int, length: int, bytes_each: int) -> int:
    """Bytes of keys and values: 2 · layers · K E numbers per position."""
    return 2 * model.layers * model.kv_width * rows * length * bytes_each


def rollouts(model: TransformerConfig, run: TrainingShape) -> int:
    """Bytes of decoding without the weights: states of a block, logits, keys and values of whole rows."""
    # Compiled, drawing reads logits in the model's precision and writes one token for each position.
    logit = run.compute_bytes if run.compiled else 4 * _DRAW_COPIES
    logits = logit * run.candidates * model.rows
    kept = cache_bytes(model, run.decoded, run.length, run.compute_bytes) if run.cached else 0
    return pass_bytes(model, run) + logits + kept + stack_bytes(model, run)
