"""The largest settings that fit a given memory, by the same estimate that a run is checked with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from dtm.capacity.memory import Memory, TrainingShape, estimate
from dtm.engine.draws import head_rows
from dtm.errors import ConfigError
from dtm.models.shape import TransformerConfig

CONTEXT = 2**30
"""What a GPU's driver and the workspaces of its kernels take beside all that is estimated."""
MOST = 1024
"""Rows beyond which nobody asks."""
ENOUGH = 12
"""Rows of a micro-batch that are advised at most; the published ones."""
TOGETHER = 128
"""Sequences decoded together that are advised at most."""


@dataclass(frozen=True, slots=True)
class Fit:
    """What fits with one kind of base weights; 0 rows: not even one."""

    nf4: bool
    rows_recomputed: int
    """Largest micro-batch with every block recomputed."""
    rows_kept: int
    """The same with none recomputed."""
    batch_exact: int
    """Most sequences decoded together without a cache."""
    batch_cached: int
    """The same with one."""
    smallest: Memory
    """Of one row with every block recomputed."""


def largest(fits: Callable[[int], bool], most: int = MOST) -> int:
    """The largest number up to ``most`` that fits, where more never fits better.

    >>> largest(lambda rows: 3 * rows <= 100), largest(lambda rows: False)
    (33, 0)
    """
    low, high = 0, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def fit(model: TransformerConfig, run: TrainingShape, block: int, room: int) -> list[Fit]:
    """What fits into ``room`` bytes over a base in bfloat16 and in four bits; ``run`` says the rest."""

    def trains(nf4: bool, recompute: int) -> Callable[[int], bool]:
        return lambda rows: _total(model, replace(run, nf4=nf4, recompute=recompute, rows=rows)) <= room

    def decodes(nf4: bool, cached: bool) -> Callable[[int], bool]:
        def fits(rows: int) -> bool:
            held = min(rows * block, head_rows(model.vocab_size))
            decoding = replace(run, nf4=nf4, rows=0, decoded=rows, candidates=held, cached=cached)
            return _total(model, decoding) <= room

        return fits

    return [
        Fit(
            nf4,
            largest(trains(nf4, model.layers)),
            largest(trains(nf4, 0)),
            largest(decodes(nf4, cached=False)),
            largest(decodes(nf4, cached=True)),
            estimate(model, replace(run, nf4=nf4, recompute=model.layers, rows=1)),
        )
        for nf4 in (False, True)
    ]


def advice(model: TransformerConfig, run: TrainingShape, found: list[Fit], room: int) -> dict[str, str]:
    """Flags for exact and for cached decoding: bfloat16 if it fits, and no more recomputed than must be."""
    usable = [one for one in found if one.rows_recomputed and one.batch_exact]
    if not usable:
        least = (min(one.smallest.total for one in found) + CONTEXT) / 2**30
        raise ConfigError(
            "it does not fit: one row, in four bits and with all blocks recomputed, needs about "
            f"{least:.1f} GiB. Less: a lower --rank, fewer --targets, a shorter --completion; of that the "
            f"weights are {min(one.smallest.weights for one in found) / 2**30:.1f} GiB."
        )
    best = usable[0]
    rows = min(best.rows_recomputed, ENOUGH)
    blocks = fewest_recomputed(model, replace(run, nf4=best.nf4, rows=rows), room)
    flags = (
        f"--model.{'' if best.nf4 else 'no-'}nf4 --optimizer.micro-batch {rows} --model.recompute {blocks}"
    )
    told = {"exact decoding": f"{flags} --decoding.batch {min(best.batch_exact, TOGETHER)}"}
    if best.batch_cached:
        cached = f"--decoding.batch {min(best.batch_cached, TOGETHER)} --decoding.cache block"
        told["with a cache"] = f"{flags} {cached}"
    return told


def fewest_recomputed(model: TransformerConfig, run: TrainingShape, room: int) -> int:
    """As few blocks as fit; all of them where none do. Decoding has no backward pass and is left out."""

    def fits(blocks: int) -> bool:
        needed = estimate(model, replace(run, recompute=blocks))
        return needed.lasting + needed.activations + needed.logits <= room

    return next(filter(fits, range(model.layers)), model.layers)


def _total(model: TransformerConfig, run: TrainingShape) -> int:
    return estimate(model, run).total
