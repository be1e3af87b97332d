"""Rollouts at 8B: exact, with a cache, and with rows that come and go."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Sequence

import torch
from torch import Tensor

from dtm.decoding import Decoder, SampledConfidence, decode_rows
from dtm.models.flops import rollout_flops
from dtm.models.policy import Policy
from dtm.models.transformer import Transformer
from dtm.random import stream
from dtm.records import Prompts
from llada8b_setup import Rig, make_policy


def make_prompts(bench: Rig, rows: int) -> Prompts:
    """Random tokens."""
    noise = stream(0, "prompts", device=bench.device)
    tokens = torch.randint(2, 90, (rows, bench.sizes.prompt), generator=noise, device=bench.device)
    return Prompts(tokens, torch.ones_like(tokens, dtype=torch.bool), [None] * rows)


def rollout_floor(bench: Rig, cached: bool, blocks: float | None = None) -> float:
    """Rollouts a second that the multiplications alone would allow."""
    sizes = bench.sizes
    flops = rollout_flops(sizes.model, sizes.prompt, sizes.completion, sizes.block, 2, cached)
    share = 1.0 if blocks is None else blocks * sizes.block / sizes.completion
    return bench.rate / (flops * share)


def rollouts_per_second(
    bench: Rig, model: Transformer, decoder: Decoder, rows: int, blocks: int, warm: int
) -> float:
    """Whole rollouts a second, from the median time of a block of all rows; every block is as long."""
    sizes, stamps = bench.sizes, list[float]()

    def stamp() -> None:
        bench.wait()
        stamps.append(time.perf_counter())

    def ended(_: Sequence[int], __: Tensor, written: Sequence[int]) -> list[bool]:
        return [count >= (blocks + warm) * sizes.block for count in written]

    with bench.autocast():
        decode_rows(
            model, make_prompts(bench, rows), sizes.completion, decoder, 0, rows, ended, between=stamp
        )
    stamp()
    times = [after - before for before, after in itertools.pairwise(stamps)]
    return rows / (statistics.median(times[warm:]) * sizes.completion / sizes.block)


def decoder_of(bench: Rig, cached: bool) -> Decoder:
    """LLaDA's order, two tokens a step."""
    return Decoder(
        order=SampledConfidence(),
        block=bench.sizes.block,
        tokens_per_step=2,
        cache="block" if cached else "none",
    )


def rollouts(bench: Rig, cached: bool) -> None:
    """Rollouts in lockstep, for several batch sizes."""
    name, policy = "cached" if cached else "exact", make_policy(bench)
    model = merged_teacher(bench, policy)
    speeds = {}
    for rows in bench.sizes.batches:
        # Two blocks of exact decoding take ten seconds at 30 rows and forty at 128.
        blocks = 6 if cached else (3 if rows <= 32 else 1)
        blocks = min(blocks, bench.sizes.completion // bench.sizes.block - 1)
        speeds[rows] = rollouts_per_second(bench, model, decoder_of(bench, cached), rows, blocks, warm=1)
        bench.say(f"{name} rollouts, batch {rows}: {speeds[rows]:.3f} /s")
        floor = rollout_floor(bench, cached)
        best = speeds[bench.sizes.batches[0]] if not cached else max(speeds.values())
        bench.keep(
            **{
                f"{name}_rollouts_per_s": best,
                f"{name}_rollouts_per_s_by_batch": speeds,
                f"{name}_rollouts_per_s_floor": floor,
            }
        )


def merged_teacher(bench: Rig, policy: Policy) -> Transformer:
    """π_a as a run decodes with it."""
    model = policy.decoding_teacher(room=2**62)
    assert isinstance(model, Transformer)
    if bench.on_gpu:
        model.compile_blocks()
    return model


def exact(bench: Rig) -> None:
    """Every pass over whole rows."""
    rollouts(bench, cached=False)


def cached(bench: Rig) -> None:
    """One pass over whole rows a block, the others over the block."""
    rollouts(bench, cached=True)


def ragged(bench: Rig) -> None:
    """The same, where rows that are done make room for new prompts."""
    sizes, policy = bench.sizes, make_policy(bench)
    model = merged_teacher(bench, policy)
    together, rows = sizes.ragged
    noise = stream(0, "lengths")
    lengths = torch.randint(sizes.shortest, sizes.completion + 1, (rows,), generator=noise).tolist()

    def ended(numbers: Sequence[int], _: Tensor, written: Sequence[int]) -> list[bool]:
        return [count >= lengths[row] for row, count in zip(numbers, written, strict=True)]

    def run(count: int) -> None:
        with bench.autocast():
            decode_rows(
                model,
                make_prompts(bench, count),
                sizes.completion,
                decoder_of(bench, True),
                0,
                together,
                ended,
            )

    run(together)  # warms up, also for batches that have become smaller
    speed = rows / bench.seconds(lambda: run(rows), repeats=1, warm=0)
    blocks = statistics.mean(-(-length // sizes.block) for length in lengths)
    bench.say(f"ragged rollouts, {rows} rows through a batch of {together}: {speed:.3f} /s")
    bench.keep(
        ragged_rollouts_per_s=speed,
        ragged_rollouts_per_s_floor=rollout_floor(bench, True, blocks),
        ragged_setting={"batch": together, "rollouts": rows, "mean_tokens": statistics.mean(lengths)},
    )
