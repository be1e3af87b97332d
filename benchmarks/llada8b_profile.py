"""Where the time of a pass goes at 8B, and what each way to make it faster brings.

`profile`: kernels by kind, and how long the device waits for the host. `switches`: the same passes with and
without fused products and sums in place, with another attention kernel, and in eight bits.

A block of many rows is written in one step, a pass over whole rows, and in two, of which the second is a pass
over the block; the difference is the latter. Kernels are those that torch.profiler sees, wall-clock that of a
run without it.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch.autograd import DeviceType  # type: ignore[attr-defined]  # public, but not in its __all__
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import ProfilerActivity

from dtm.engine.blocks import Batch, Blocks, Row
from dtm.engine.generation import masked_rows
from dtm.engine.passes import passes_of
from dtm.engine.reveal import Stepper
from dtm.models.transformer import Transformer
from llada8b_rollouts import decoder_of, make_prompts
from llada8b_setup import Rig, decoding_model, make_policy
from llada8b_updates import training

KINDS = {
    "attention": r"flash|fmha|sdpa|attention",
    "sampling": r"argm(in|ax)|log_softmax|exponential|distribution|uniform|sort|topk",
    "matrix products": r"gemm|cutlass|nvjet|xmma|cublas|splitk|triton_tem|\b(add|b|_scaled_)?mm_?\b|linear",
    "elementwise": r"triton|elementwise|copy|memcpy|memset|cat|index|gather|scatter|reduce|norm|^aten::",
    "other": r"",
}
"""Kinds of kernels by what is in their names; the first that fits."""

Profile = dict[str, float]
"""Milliseconds: of each kind, and of the wall clock."""


def profile(bench: Rig) -> None:
    """A table of one full pass, one pass over windows and one micro-batch."""
    one, two = block_writers(bench, decoding_model(bench))
    full = measured(bench, one)
    both = measured(bench, two)
    window = {name: max(value - full[name], 0.0) for name, value in both.items()}
    del one, two
    bench.empty()
    rows = bench.sizes.micro_batches[0]
    micro_batch, _ = training(bench, make_policy(bench, merge=True), rows)
    found = {"full pass": full, "window pass": window, f"micro-batch of {rows}": measured(bench, micro_batch)}
    bench.keep(profile={name: {**times, "idle_share": idle(times)} for name, times in found.items()})
    print(table(found))


def switches(bench: Rig) -> None:
    """Milliseconds of both passes of π_a, draws included, switch by switch, and of a micro-batch."""
    policy, rows = make_policy(bench, merge=True), bench.sizes.micro_batches[0]
    found: dict[str, dict[str, float]] = {}
    apart = copy.copy(policy.pi_a())
    assert isinstance(apart, Transformer)
    apart.adds_in_place = False
    for name, model, kernel in (
        ("separate products", policy.base, None),  # a merged model's products, before fusing
        ("fused products, sums apart", apart, None),
        ("fused products", policy.pi_a(), None),
        ("fused products, flash attention", policy.pi_a(), SDPBackend.FLASH_ATTENTION),
        ("eight bits", policy.pi_a(fp8=True), None),
    ):
        assert isinstance(model, Transformer)
        with attention_by(kernel):
            full, both = (bench.seconds(work, 3, warm=2) for work in block_writers(bench, model))
            found[name] = {"full_ms": 1e3 * full, "window_ms": 1e3 * (both - full)}
            if model is policy.pi_a():  # updates read it merged, whatever rollouts are drawn by
                update = bench.seconds(training(bench, policy, rows)[0], 3, warm=2)
                found[name]["update_ms"] = 1e3 * update
        bench.say(", ".join([name, *(f"{part} {took:.1f}" for part, took in found[name].items())]))
    bench.keep(switches=found)


@contextmanager
def attention_by(kernel: SDPBackend | None) -> Iterator[None]:
    """Prefer this kernel of scaled_dot_product_attention; what was compiled with another is forgotten."""
    if kernel is None:
        yield
        return
    torch._dynamo.reset()
    others = [one for one in SDPBackend.__members__.values() if one not in (kernel, SDPBackend.ERROR)]
    try:
        with sdpa_kernel([kernel, *others], set_priority=True):
            yield
    finally:
        torch._dynamo.reset()


def block_writers(bench: Rig, model: Transformer) -> tuple[Callable[[], object], Callable[[], object]]:
    """Write the first block of some rows: by a pass over whole rows, and by that and one over the block."""
    sizes, rows = bench.sizes, bench.sizes.ragged[0]
    prompts, cached = make_prompts(bench, rows), decoder_of(bench, 1, model.fp8)
    numbers = torch.arange(rows, device=bench.device)[:, None]  # no two prompts share their first pass
    starts, length = [sizes.prompt] * rows, sizes.prompt + sizes.completion
    blocks = Blocks.of(starts, length, cached)
    passes = passes_of(model, cached, blocks, numbers, rows)

    def write(steps: int) -> object:
        decoder = replace(cached, tokens_per_step=sizes.block // steps)
        blocks = Blocks.of(starts, length, decoder)
        stepper = Stepper(model, decoder, blocks, blocks.table(bench.device), passes)
        canvas = masked_rows(prompts, sizes.completion, 1, model)
        working = [Row(number, sizes.block) for number in range(rows)]
        batch = Batch.of(working, blocks, 0, None, bench.device)
        with bench.autocast(), torch.no_grad():
            for since in range(steps):
                stepper.step(canvas, batch, working, since)
        return canvas

    return lambda: write(1), lambda: write(2)


def measured(bench: Rig, work: Callable[[], object]) -> Profile:
    """Kernel time by kind, and the wall-clock of the same work when nobody watches."""
    wall = bench.seconds(work, 3, warm=3)
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if bench.on_gpu else [])]
    with torch.profiler.profile(activities=activities) as watched:
        work()
        bench.wait()
    times = dict.fromkeys(KINDS, 0.0)
    for event in watched.key_averages():
        if event.device_type == (DeviceType.CUDA if bench.on_gpu else DeviceType.CPU):
            spent = event.self_device_time_total if bench.on_gpu else event.self_cpu_time_total
            times[kind(event.key)] += spent / 1e3
    return {**times, "wall": 1e3 * wall}


def kind(kernel: str) -> str:
    """What a kernel is for, by its name."""
    return next(name for name, pattern in KINDS.items() if re.search(pattern, kernel.lower()))


def idle(times: Profile) -> float:
    """The share of the wall-clock in which no kernel runs."""
    return max(0.0, 1 - sum(times[name] for name in KINDS) / max(times["wall"], 1e-9))


def table(found: dict[str, Profile]) -> str:
    """Milliseconds of each kind, and the idle share."""
    lines = [f"| ms | {' | '.join(KINDS)} | wall | idle |", "|---" + "|--:" * (len(KINDS) + 2) + "|"]
    for name, times in found.items():
        values: list[Any] = [f"{times[part]:.1f}" for part in (*KINDS, "wall")]
        lines.append(f"| {name} | {' | '.join(values)} | {idle(times):.0%} |")
    return "\n".join(lines)
