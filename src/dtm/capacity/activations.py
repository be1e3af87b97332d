"""Estimate activation memory: tensors kept for the backward pass, and the states of a decoding pass.

Letters: D width, F feed-forward width, H heads, K key-value heads, E head width, r rank of the adapters,
L length of a row, T = rows · L tokens of a micro-batch, b bytes per number in the compute dtype; with experts
k that a token passes through, each of width F'.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dtm.models.linears import Linear
from dtm.models.shape import TransformerConfig

if TYPE_CHECKING:
    from dtm.capacity.memory import TrainingShape


def activations(model: TransformerConfig, run: TrainingShape) -> int:
    """Bytes that autograd keeps for a micro-batch: T · b · numbers per token, and some independent of T.

    A recomputed block keeps its input, D per token, and all of its activations while it is recomputed, one
    block at a time. The second half of the last block keeps scored positions only.
    """
    token = run.rows * run.length * run.compute_bytes * (1 + run.doubled)
    layers = [
        token * sum(_block_numbers(model, run, number)) + _block_bytes(model, run, number)
        for number in range(model.layers)
    ]
    again = min(run.recompute, model.layers)
    kept = sum(layers[again:]) + (max(layers[:again]) if again else 0)
    unscored = run.rows * max(run.length * (1 + run.doubled) - run.scored, 0) * run.compute_bytes
    second = _block_numbers(model, run, model.layers - 1)[1]
    inputs = again * token * model.width
    return kept + inputs - unscored * second * (again < model.layers) + stack_bytes(model, run)


def _block_numbers(model: TransformerConfig, run: TrainingShape, number: int) -> tuple[int, int]:
    """Numbers per token that the two halves of a block keep for the backward pass.

    The first half keeps

    - input and output of its norm, 2 D, and D more if the norm is trained;
    - q, k, v and the attention's result, 2 (H + K) E;
    - with norms of queries and keys their inputs, (H + K) E, and as much again where they are trained;
    - A x of every adapter, r each.

    The second half keeps 2 D or 3 D and A x likewise, the feed-forward layer (`_feed_numbers`), and the input
    of `out` if that is adapted or trained. This is the attention's result, except where heads share keys
    under a mask: there the result is in another order, and the input is a copy of H E.
    """
    changed = _changed(model, run, number)
    queries_keys = (model.query_width + model.kv_width) * model.qk_norm
    extra = {"attend": model.width + queries_keys, "feed": model.width}  # trained norms
    if run.lora is not None:
        extra = dict.fromkeys(extra, 0)
        for linear in changed.values():
            extra[linear.half] += run.lora.rank * linear.active
    first = 2 * model.width + 2 * (model.query_width + model.kv_width) + queries_keys + extra["attend"]
    is_copied = _is_masked(model, run) and model.query_width > model.kv_width and "out" in changed
    second = 2 * model.width + extra["feed"] + is_copied * model.query_width
    return first, second + _feed_numbers(model, run, number, changed)


def _feed_numbers(
    model: TransformerConfig, run: TrainingShape, number: int, changed: dict[str, Linear]
) -> int:
    """Numbers per token that the feed-forward layer of a block keeps.

    The gate before and after its nonlinearity and the up branch, 3 F; compiled, the two branches only, 2 F,
    since elementwise products are recomputed. The input of `down`, F, if that is adapted or trained: its
    gradient is a product with it, and a compiled pass keeps what its backward pass would have to write to
    memory. Layers in four bits are not compiled.

    Experts are not compiled either. They keep 3 k F', k D results that the gradient of the router's weights
    needs, and float32 scores of all experts; trained ones their inputs too, k (D + F').
    """
    branches = 2 if run.compiled and not run.nf4 else 3
    experts = model.experts
    if experts is None or number not in experts.layers:
        return (branches + ("down" in changed)) * model.ffn
    chosen = 3 * experts.width + model.width
    if "expert_down" in changed:
        chosen += experts.width + model.width
    shared = (branches + ("shared_down" in changed)) * (experts.shared or 0)
    return experts.active * chosen + shared + experts.count * 4 // run.compute_bytes


def _block_bytes(model: TransformerConfig, run: TrainingShape, number: int) -> int:
    """Bytes of a block that do not depend on the number of tokens.

    Copies of the adapters' factors: A, r · inputs, because those that read one input are joined; and B,
    r · outputs, where the compute dtype is not its float32. And the mask of block-causal attention, in the
    compute dtype: L keys for L queries of the H / K heads that share a key, once, or for each padded row.
    """
    size, factors = run.compute_bytes, 0
    if run.lora is not None:
        factors = sum(
            run.lora.rank * (linear.inputs + linear.outputs * (size < 4))
            for linear in _changed(model, run, number).values()
        )
    mask = 0
    if model.attention_block is not None and _is_masked(model, run):
        group, length = model.query_width // model.kv_width, run.length * (1 + run.doubled)
        mask = (run.rows if run.padded else 1) * group * length * length
    return size * (factors + mask)


def _is_masked(model: TransformerConfig, run: TrainingShape) -> bool:
    """Return whether attention has a mask: for padding, or for blocks of more than one token."""
    return run.padded or run.doubled or (model.attention_block or 1) > 1


def _changed(model: TransformerConfig, run: TrainingShape, number: int) -> dict[str, Linear]:
    """Linear layers of a block that are trained, by adapters or themselves."""
    linears = model.linears() if run.lora is None else run.lora.resolve(model.linears(), model.family)
    return {linear.name: linear for linear in linears if number in linear.indices[0]}


def pass_bytes(model: TransformerConfig, run: TrainingShape) -> int:
    """Bytes of the states of a block in the widest pass of decoding.

    Per token 2 D, the stream and the output of a norm, and inside the feed-forward layer 3 F: both branches
    and their product. Experts hold k (D + 3 F') there, or k (3 D + F') where they put their results in order.
    """
    experts, inner = model.experts, 3 * model.ffn
    if experts is not None and experts.layers:
        wide, narrow = experts.active * model.width, experts.active * experts.width
        chosen = max(wide + 3 * narrow, 3 * wide + narrow)
        inner = chosen if len(experts.layers) == model.layers else max(chosen, inner)
    return _widest_pass(model, run) * run.compute_bytes * (2 * model.width + inner)


def _widest_pass(model: TransformerConfig, run: TrainingShape) -> int:
    """Number of positions of the widest pass of decoding: whole rows, unless there is the prefix cache.

    With the prefix cache the first pass runs over the prompt and one block, once for all completions of a
    prompt in the batch; the first pass of a later block runs over two blocks of every row.
    """
    block = model.attention_block
    if not run.cached or block is None or run.prompt is None:
        return run.decoded * run.length
    prompts = min(run.decoded, -(-run.decoded // run.together) + 1)
    first = prompts * min((run.prompt // block + 1) * block, run.length)
    return max(first, run.decoded * min(2 * block, run.length))


def stack_bytes(model: TransformerConfig, run: TrainingShape) -> int:
    """Bytes of the largest stack of experts, which a product dequantises where weights are in four bits."""
    stacks = [
        linear.stacked * linear.inputs * linear.outputs for linear in model.linears() if linear.stacked > 1
    ]
    return max(stacks, default=0) * run.compute_bytes * run.nf4
