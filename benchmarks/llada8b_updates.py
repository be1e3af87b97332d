"""Updates at 8B: fast, lean, in four bits, and on a small card."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dtm.capacity.flops import update_flops
from dtm.capacity.memory import TrainingShape, estimate
from dtm.loop.replay import Replay
from dtm.masking import MaskCount
from dtm.methods import CDTM
from dtm.methods.c_dtm import HELD, CDTMConfig
from dtm.models.adapters import LoRA
from dtm.models.policy import Policy
from dtm.random import stream
from dtm.records import Phase, Rollouts
from llada8b_setup import Rig, make_policy
from measuring import GIB

MOST = 12
"""Micro-batches of a timed update. On a small card they are of one row each, and its step comes too often."""


def buffer(bench: Rig, rows: int) -> Replay:
    """Rollouts of random tokens and rewards."""
    sizes, noise = bench.sizes, stream(0, "buffer", device=bench.device)
    shape = rows, sizes.prompt + sizes.completion
    tokens = torch.randint(2, 90, shape, generator=noise, device=bench.device)
    everywhere = torch.ones_like(tokens, dtype=torch.bool)
    written = torch.arange(shape[1], device=bench.device) >= sizes.prompt
    drawn = Rollouts(
        tokens,
        everywhere,
        everywhere & written,
        torch.zeros_like(tokens),
        torch.zeros(shape, device=bench.device),
        torch.rand(rows, generator=noise, device=bench.device),
        torch.arange(rows, device=bench.device) // 2,
        0.0,
    )
    return Replay(drawn, 1.0)


def training(bench: Rig, policy: Policy, rows: int) -> tuple[Callable[[], None], Callable[[], None]]:
    """A micro-batch, forward and backward, and the optimiser's step."""
    replay, noise = buffer(bench, 4 * rows), stream(0, "masks", device=bench.device)
    method, phase = CDTM(CDTMConfig(control_variate="one", guard=False)), Phase(0, 0.0, 1.0, 1.0)
    optimizer = torch.optim.AdamW(policy.trained(), lr=1e-5, fused=bench.on_gpu)
    policy.student.train()

    def micro_batch() -> None:
        drawn, weights, _ = replay.draw(rows, 0.0, noise)
        states = MaskCount(bench.sizes.block).states(drawn, bench.sizes.model.mask_id, noise)
        with bench.autocast():
            loss = method.loss(policy, states, weights, phase)
        torch.autograd.backward(loss.value)

    def step() -> None:
        torch.nn.utils.clip_grad_norm_(policy.trained(), 2.0)
        optimizer.step()
        optimizer.zero_grad()

    return micro_batch, step


def train(bench: Rig, policy: Policy, rows: int) -> tuple[float, float]:
    """Median seconds of a row in whole updates, and those of the optimiser's step."""
    micro_batch, step = training(bench, policy, rows)
    count = max(1, min(bench.sizes.step // rows, MOST))

    def update() -> None:
        for _ in range(count):
            micro_batch()
        step()

    for _ in range(2):  # gradients are made, and added to
        micro_batch()
    step()
    whole = bench.seconds(update, 3, warm=0)
    micro_batch()
    return whole / (count * rows), bench.seconds(step, 1, warm=0)


def updates(
    bench: Rig,
    name: str,
    *,
    rows: int,
    nf4: bool = False,
    recompute: int = 0,
    compiled: bool = True,
    merge: bool = False,
) -> dict[str, Any]:
    """Rows a second and peak memory of one setting, with floor and estimate."""
    sizes, lora = bench.sizes, LoRA(rank=bench.sizes.rank, targets=("published",))
    with bench.counted_memory() as peak:
        policy = make_policy(bench, nf4, recompute, compiled, merge)
        row, step = train(bench, policy, rows)
        del policy
    length, scored = sizes.prompt + sizes.completion, (sizes.block + 1) / 2
    flops = update_flops(sizes.model, length, scored, lora, recompute / sizes.model.layers, merge)
    guess = estimate(
        sizes.model,
        TrainingShape(
            rows=rows,
            length=length,
            scored=(sizes.block + 1) // 2,
            rollouts=4 * rows,
            lora=lora,
            nf4=nf4,
            recompute=recompute,
            compiled=compiled and bench.on_gpu,
            merged=merge,
            held=max(1, HELD // sizes.model.vocab_size),
            weight_bytes=torch.finfo(bench.dtype).bits // 8,
            compute_bytes=torch.finfo(bench.dtype).bits // 8,
        ),
    )
    found = {
        "rows_per_s": 1 / row,
        "rows_per_s_floor": bench.rate / flops,
        "optimizer_s": step,
        "peak_gib": peak["allocated"],
        "reserved_gib": peak["reserved"],
        "before_gib": peak["before"],
        "estimate_gib": guess.total / GIB,
        "setting": {"nf4": nf4, "recomputed_blocks": recompute, "micro_batch": rows, "merged": merge},
    }
    gib = "" if peak["allocated"] is None else f", peak {peak['allocated']:.1f} GiB"
    bench.say(f"{name}: {found['rows_per_s']:.2f} rows/s{gib} (estimate {found['estimate_gib']:.1f} GiB)")
    return found


def fast(bench: Rig) -> None:
    """Updates with nothing recomputed and π_a merged, for several micro-batches; the fastest is reported."""
    tried: dict[int, dict[str, Any]] = {}
    for rows in bench.sizes.micro_batches:
        tried[rows] = updates(bench, f"training, fast, micro-batch {rows}", rows=rows, merge=True)
        best = max(tried.values(), key=lambda found: found["rows_per_s"])
        bench.keep(  # after each, for the largest may not fit
            train_rows_per_s=best["rows_per_s"],
            train_rows_per_s_floor=best["rows_per_s_floor"],
            train_peak_gib_fast=best["peak_gib"],
            train_fast=best,
            train_fast_by_micro_batch=tried,
        )


def lean(bench: Rig) -> None:
    """Updates with every block recomputed, over a base in bfloat16."""
    layers, rows = bench.sizes.model.layers, bench.sizes.micro_batches[0]
    found = updates(bench, "training, lean, bf16", recompute=layers, rows=rows)
    bench.keep(train_peak_gib_bf16=found["peak_gib"], train_lean_bf16=found)


def nf4(bench: Rig) -> None:
    """The same over a base in four bits."""
    layers, rows = bench.sizes.model.layers, bench.sizes.micro_batches[0]
    found = updates(bench, "training, lean, NF4", nf4=True, recompute=layers, rows=rows, compiled=False)
    bench.keep(train_peak_gib_nf4=found["peak_gib"], train_lean_nf4=found)


def card(bench: Rig) -> None:
    """Training at all where no more than a small card's memory may be allocated."""
    bench.empty()
    if bench.on_gpu:
        whole = torch.cuda.get_device_properties(bench.device).total_memory
        torch.cuda.set_per_process_memory_fraction(bench.sizes.card / whole)
    try:
        layers = bench.sizes.model.layers
        found = updates(bench, "training, small card", nf4=True, recompute=layers, rows=1, compiled=False)
    finally:
        if bench.on_gpu:
            torch.cuda.set_per_process_memory_fraction(1.0)
    bench.keep(train_small_card={**found, "limit_gib": bench.sizes.card / GIB})
