"""Find the largest settings that fit a given memory, by the same estimate as `preflight`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from dtm.capacity.activations import activations
from dtm.capacity.memory import Memory, TrainingShape, estimate
from dtm.engine.draws import head_rows
from dtm.errors import ConfigError
from dtm.models.shape import TransformerConfig

CONTEXT = 2**30
"""Bytes of the GPU's context and kernel workspaces, which the estimate does not include."""
MAX_ROWS = 1024
"""Upper limit of the search for a micro-batch, in rows."""
MAX_MICRO_BATCH = 12
"""Largest micro-batch that `advice` names: the published one."""
MAX_DECODED = 128
"""Largest decoding batch that `advice` names."""


@dataclass(frozen=True, slots=True)
class Fit:
    """Largest settings with one kind of base weights; 0: not even one row fits."""

    nf4: bool
    rows_recomputed: int
    """Largest micro-batch with every block recomputed."""
    rows_kept: int
    """Largest micro-batch with no block recomputed."""
    batch_exact: int
    """Most sequences decoded together, without a cache."""
    batch_cached: int
    """Most sequences decoded together, with a cache."""
    smallest: Memory
    """Memory of one row with every block recomputed."""


def largest(fits: Callable[[int], bool]) -> int:
    """Return the largest number up to `MAX_ROWS` that fits, by bisection; 0 if not even 1 fits.

    >>> largest(lambda rows: 3 * rows <= 100), largest(lambda rows: False)
    (33, 0)
    """
    low, high = 0, MAX_ROWS + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def fit(model: TransformerConfig, run: TrainingShape, block: int, limit: int) -> list[Fit]:
    """Find the largest settings for ``limit`` bytes, with a base in bfloat16 and in NF4."""
    return [_fit(model, replace(run, nf4=nf4), block, limit) for nf4 in (False, True)]


def fit_in_full(model: TransformerConfig, run: TrainingShape, block: int, limit: int, shards: int) -> Fit:
    """Find the largest settings for ``limit`` bytes on each GPU; all weights trained, over several shards."""
    return _fit(model, replace(run, lora=None, nf4=False, weight_bytes=4, shards=shards), block, limit)


def _fit(model: TransformerConfig, run: TrainingShape, block: int, limit: int) -> Fit:
    def trains(recompute: int) -> Callable[[int], bool]:
        return lambda rows: _total(model, replace(run, recompute=recompute, rows=rows)) <= limit

    def decodes(cached: bool) -> Callable[[int], bool]:
        def fits(rows: int) -> bool:
            held = min(rows * block, head_rows(model.vocab_size))
            decoding = replace(run, rows=0, decoded=rows, candidates=held, cached=cached)
            return _total(model, decoding) <= limit

        return fits

    return Fit(
        run.nf4,
        largest(trains(model.layers)),
        largest(trains(0)),
        largest(decodes(cached=False)),
        largest(decodes(cached=True)),
        estimate(model, replace(run, recompute=model.layers, rows=1)),
    )


def advice(model: TransformerConfig, run: TrainingShape, found: list[Fit], limit: int) -> dict[str, str]:
    """Return flags for exact and for cached decoding: bfloat16 if it fits, and few recomputed blocks."""
    usable = [one for one in found if one.rows_recomputed and one.batch_exact]
    if not usable:
        least = (min(one.smallest.total for one in found) + CONTEXT) / 2**30
        raise ConfigError(
            "the model does not fit: one row, in four bits and with all blocks recomputed, needs about "
            f"{least:.1f} GiB. To reduce it: a lower --rank, fewer --targets, a shorter --completion; the "
            f"weights are {min(one.smallest.weights for one in found) / 2**30:.1f} GiB of it."
        )
    best = usable[0]
    rows = min(best.rows_recomputed, MAX_MICRO_BATCH)
    blocks = fewest_recomputed(model, replace(run, nf4=best.nf4, rows=rows), limit)
    flags = (
        f"--model.{'' if best.nf4 else 'no-'}nf4 --optimizer.micro-batch {rows} --model.recompute {blocks}"
    )
    exact = f"{flags} --decoding.batch {min(best.batch_exact, MAX_DECODED)}"
    cached = f"{flags} --decoding.batch {min(best.batch_cached, MAX_DECODED)}"
    if model.attention_block is None:
        flags_for = {"exact decoding": exact}
        return flags_for | ({"with a cache": f"{cached} --decoding.cache block"} if best.batch_cached else {})
    if best.batch_cached:  # the prefix cache is exact: there is no reason to decode without it
        return {"exact, with the prefix cache": f"{cached} --decoding.cache prefix"}
    return {"exact decoding": f"{exact} --decoding.cache none"}


def fewest_recomputed(model: TransformerConfig, run: TrainingShape, limit: int) -> int:
    """Return the fewest recomputed blocks with which training fits; all blocks if none does."""

    def fits(blocks: int) -> bool:
        needed = estimate(model, replace(run, recompute=blocks))
        return needed.persistent + needed.activations + needed.logits <= limit

    return next(filter(fits, range(model.layers)), model.layers)


def pretraining_rows(
    model: TransformerConfig, length: int, compute_bytes: int, compiled: bool, limit: int, skew: float = 1.0
) -> int:
    """Most rows, at least one, of a pretraining pass whose activations and logits fit ``limit`` bytes.

    Of the positions p / (p + 1) are scored, where p is the skew of the masks: half of them without one.
    Compiled, the loss keeps logits and their gradient; otherwise it keeps float32 copies too.
    """
    scored = int(length * skew / (skew + 1))
    logit = 3 * compute_bytes if compiled else 5 * 4

    def fits(rows: int) -> bool:
        run = TrainingShape(
            rows=rows,
            length=length,
            scored=scored,
            rollouts=0,
            compute_bytes=compute_bytes,
            compiled=compiled,
        )
        return activations(model, run) + logit * rows * scored * model.rows <= limit

    return max(1, largest(fits))


def _total(model: TransformerConfig, run: TrainingShape) -> int:
    return estimate(model, run).total
