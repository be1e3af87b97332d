"""Rollouts at 8B: exact, with a cache, with rows that come and go, and in eight bits."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dtm.capacity.flops import rollout_flops
from dtm.engine import Decoder, SampledConfidence, generate
from dtm.models.fp8 import product, rounded
from dtm.models.transformer import Transformer
from dtm.random import stream
from dtm.records import Prompts
from llada8b_setup import Rig, decoding_model, make_policy
from measuring import Stamp

COMPLETIONS = 6
"""Of each prompt, as in the paper's Countdown and GSM8K; with a cache they share the first pass."""


def make_prompts(bench: Rig, rows: int) -> Prompts:
    """Random tokens, each prompt `COMPLETIONS` times."""
    noise, count = stream(0, "prompts", device=bench.device), -(-rows // COMPLETIONS)
    drawn = torch.randint(2, 90, (count, bench.sizes.prompt), generator=noise, device=bench.device)
    tokens = drawn.repeat_interleave(COMPLETIONS, dim=0)[:rows]
    return Prompts(tokens, torch.ones_like(tokens, dtype=torch.bool), [None] * rows)


def rollout_floor(bench: Rig, refresh: int | None, blocks: float | None = None) -> float:
    """Rollouts a second that the multiplications alone would allow, of so many blocks; by default of all."""
    sizes = bench.sizes
    apart, together = (
        rollout_flops(sizes.model, sizes.prompt, sizes.completion, sizes.block, 2, refresh, completions)
        for completions in (1, COMPLETIONS)
    )
    share = 1.0 if blocks is None else blocks * sizes.block / sizes.completion
    return bench.rate / (apart * share - (apart - together))


@dataclass(frozen=True, slots=True)
class Speeds:
    """Whole rollouts a second."""

    together: float
    """With `COMPLETIONS` of each prompt."""
    apart: float
    """With one of each: the first block takes as long as the others."""


def rollouts_per_second(
    bench: Rig, model: Transformer, decoder: Decoder, rows: int, blocks: int, warm: bool
) -> Speeds:
    """From the time of the first block of all rows and the median of the others, ``blocks`` in all."""
    sizes, stamps = bench.sizes, list[Stamp]()

    def run(last: int) -> None:
        def ended(_: Sequence[int], __: Tensor, written: Sequence[int]) -> list[bool]:
            return [count >= last * sizes.block for count in written]

        prompts = make_prompts(bench, rows)
        with bench.autocast():
            generate(
                model,
                prompts,
                sizes.completion,
                decoder,
                batch=rows,
                between=lambda: stamps.append(bench.stamp()),
                ended=ended,
            )

    if warm:
        run(2)  # the first block and the others are compiled for themselves, and kernels chosen for the shape
    stamps.clear()
    run(blocks)
    first, *others = bench.between([*stamps, bench.stamp()])
    other, count = statistics.median(others or [first]), sizes.completion // sizes.block
    return Speeds(rows / (first + (count - 1) * other), rows / (count * other))


def decoder_of(bench: Rig, refresh: int | None, fp8: bool = False) -> Decoder:
    """LLaDA's order, two tokens a step; without a number of blocks there is no cache."""
    return Decoder(
        order=SampledConfidence(),
        block=bench.sizes.block,
        tokens_per_step=2,
        cache="none" if refresh is None else "block",
        refresh=refresh or 1,
        fp8=fp8,
    )


def rollouts(bench: Rig, refresh: int | None) -> None:
    """Rollouts in lockstep, for several batch sizes."""
    name, model = "exact" if refresh is None else "cached", decoding_model(bench)
    together, apart = dict[int, float](), dict[int, float]()
    batches = bench.sizes.batches if refresh is None else bench.sizes.cached
    for rows in batches:
        # A block of exact decoding takes five seconds at 30 rows and twenty at 128, where none is to spare.
        blocks = (3 if rows <= 32 else 1) if refresh is None else (7 if rows <= 32 else 4)
        blocks = min(blocks, bench.sizes.completion // bench.sizes.block)
        warm = refresh is not None or rows == batches[0]
        speeds = rollouts_per_second(bench, model, decoder_of(bench, refresh), rows, blocks, warm)
        together[rows], apart[rows] = speeds.together, speeds.apart
        best = together[batches[0]] if refresh is None else max(together.values())
        found = {"": best, "_by_batch": together, "_floor": rollout_floor(bench, refresh)}
        bench.say(f"{name} rollouts, batch {rows}: {speeds.together:.3f} /s")
        if refresh is not None:
            found["_apart_by_batch"] = apart
            bench.say(f"  the same, one completion of each prompt: {speeds.apart:.3f} /s")
        bench.keep(**{f"{name}_rollouts_per_s{part}": value for part, value in found.items()})


def exact(bench: Rig) -> None:
    """Every pass over whole rows."""
    rollouts(bench, None)


def cached(bench: Rig) -> None:
    """One pass over whole rows a block, the others over the block."""
    rollouts(bench, 1)


def ragged(bench: Rig) -> None:
    """The same, where rows that are done make room for new prompts."""
    sizes, model = bench.sizes, decoding_model(bench)
    lengths = completion_lengths(bench)
    blocks = statistics.mean(-(-length // sizes.block) for length in lengths)
    bench.keep(
        ragged_rollouts_per_s=ragged_speed(bench, model, 1, lengths),
        ragged_rollouts_per_s_floor=rollout_floor(bench, 1, blocks),
        ragged_setting={
            "batch": sizes.ragged[0],
            "rollouts": sizes.ragged[1],
            "mean_tokens": statistics.mean(lengths),
        },
    )


def cheap(bench: Rig) -> None:
    """The last two with a single pass over whole rows, at the start."""
    sizes, model = bench.sizes, decoding_model(bench)
    refresh, rows = sizes.completion // sizes.block, sizes.ragged[0]
    prompts, decoder = make_prompts(bench, rows), decoder_of(bench, refresh)

    def whole() -> None:
        with bench.autocast():
            generate(model, prompts, sizes.completion, decoder, batch=rows)

    speed = rows / bench.seconds(whole, 2)
    bench.say(f"cached rollouts, one refresh, batch {rows}: {speed:.3f} /s")
    bench.keep(
        cheap_rollouts_per_s=speed,
        cheap_rollouts_per_s_floor=rollout_floor(bench, refresh),
        cheap_ragged_rollouts_per_s=ragged_speed(bench, model, refresh, completion_lengths(bench)),
    )


def fp8(bench: Rig) -> None:
    """Cached and ragged with projections in eight bits, and how many tokens are those of bfloat16."""
    policy = make_policy(bench, merge=True)
    model, plain = policy.pi_a(fp8=True), policy.pi_a()
    assert isinstance(model, Transformer)
    sizes, decoder = bench.sizes, decoder_of(bench, 1, fp8=True)
    rows, blocks = sizes.ragged[0], min(5, sizes.completion // sizes.block)
    bench.keep(fp8_tflops=fp8_rate(bench) / 1e12)
    speed = rollouts_per_second(bench, model, decoder, rows, blocks, warm=True).together
    bench.say(f"cached rollouts in eight bits, batch {rows}: {speed:.3f} /s")
    bench.keep(fp8_rollouts_per_s=speed)
    asked, written = make_prompts(bench, sizes.compared), list[Tensor]()
    for one in (model, plain):
        how = decoder_of(bench, 1, fp8=one.fp8)
        with bench.autocast():
            done = generate(one, asked, sizes.completion, how, batch=sizes.compared)
        written.append(done.tokens[:, sizes.prompt :])
    same = float((written[0] == written[1]).float().mean())
    bench.say(f"tokens that eight bits leave as they are, by the same noise: {same:.1%}")
    bench.keep(fp8_token_agreement=same)
    del policy, plain
    speed = ragged_speed(bench, model, 1, completion_lengths(bench))
    bench.keep(fp8_ragged_rollouts_per_s=speed)


def fp8_rate(bench: Rig) -> float:
    """Operations a second of a large product in eight bits."""
    size = 8192 if bench.on_gpu else 256
    low, scale = rounded(torch.randn(size, size, device=bench.device))
    rate = 2 * size**3 / bench.seconds(lambda: product(low, scale, low, scale.T), 10, warm=3)
    bench.say(f"matrix product in eight bits: {rate / 1e12:.3g} TFLOP/s")
    return rate


def completion_lengths(bench: Rig) -> list[int]:
    """Where the completions of the ragged mix end."""
    sizes, noise = bench.sizes, stream(0, "lengths")
    drawn = torch.randint(sizes.shortest, sizes.completion + 1, (sizes.ragged[1],), generator=noise)
    lengths: list[int] = drawn.tolist()
    return lengths


def ragged_speed(bench: Rig, model: Transformer, refresh: int, lengths: list[int]) -> float:
    """Rollouts a second of the ragged mix."""
    sizes, together = bench.sizes, bench.sizes.ragged[0]

    def ended(numbers: Sequence[int], _: Tensor, written: Sequence[int]) -> list[bool]:
        return [count >= lengths[row] for row, count in zip(numbers, written, strict=True)]

    def run(rows: int) -> None:
        prompts, decoder = make_prompts(bench, rows), decoder_of(bench, refresh, model.fp8)
        with bench.autocast():
            generate(model, prompts, sizes.completion, decoder, batch=together, ended=ended)

    run(1)  # a row alone is compiled for itself
    # All of it to warm up: for every new number of rows cuDNN prepares itself, for a twentieth of a second.
    speed = len(lengths) / bench.seconds(lambda: run(len(lengths)), repeats=1, warm=1)
    name = f"refresh {refresh}, {len(lengths)} rows through a batch of {together}{', FP8' * model.fp8}"
    bench.say(f"ragged rollouts, {name}: {speed:.3f} /s")
    return speed
