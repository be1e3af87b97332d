"""Block diffusion and expert models at their real shapes, with random weights: rollouts, updates, memory.

    python benchmarks/families.py --publish                                 # needs a GPU with 140 GB
    python benchmarks/families.py --only sdar-8b-block-32 --out one.json
    python benchmarks/families.py --smoke                                   # tiny shapes, on a CPU too

Each case is a model and a block size. Measured are rollouts with the prefix cache, which is exact under
block-causal attention, and LoRA updates of c-DTM, in one block and in every block at once. Beside each rate
stands the limit that its multiplications allow at the rate of a large matrix product; of experts the active
ones count. Beside each peak of memory stands the estimate that `dtm fit` uses, and what was allocated before.
LLaDA-8B with the same sizes is `benchmarks/llada8b.py`.

Rollouts are timed over their first blocks: `measured_tokens` of `tokens_per_rollout`, the rest at the median
rate of those after the first. `float32_tokens_as_without_cache` compares decoding with and without the cache
in float32, over two layers of the same widths: the weights are random and the logits nearly flat, so that
rounding in bfloat16 alone changes most tokens. Shares of time are those of kernels in one block and in one
micro-batch, by torch.profiler. All cases and parts take about six minutes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from dtm.capacity.flops import rollout_flops, update_flops
from dtm.capacity.memory import TrainingShape, active_parameters, cache_bytes, estimate, parameters
from dtm.engine import generate
from dtm.engine.draws import head_rows
from dtm.loop.replay import Replay
from dtm.masking import EveryBlock, MaskCount
from dtm.methods import CDTM
from dtm.methods.c_dtm import HELD, CDTMConfig
from dtm.random import stream
from dtm.records import Phase, Rollouts
from families_setup import (
    CASES,
    Case,
    Kernels,
    Rig,
    decoder_of,
    in_miniature,
    make_prompts,
    policy_of,
    random_model,
)
from measuring import GIB
from study import provenance, publish

RESULTS = Path(__file__).parents[1] / "results" / "families.json"

# ── rollouts ─────────────────────────────────────────────────────────────────────────────────────


def rollouts(bench: Rig, name: str, case: Case) -> None:
    """Rollouts with the prefix cache: seconds of each block, kernels of one more, and peak memory."""
    model, stamps, watched = policy_of(bench, case).pi_a(), list[Any](), Kernels(bench)
    blocks = -(-(case.length - case.prompt // case.block * case.block) // case.block)
    timed = min(blocks - 1, max(3, case.measured // case.block))
    asked, rows = make_prompts(bench, case), range(case.batch)

    def between() -> None:
        stamps.append(bench.stamp())
        if len(stamps) == timed + 1:
            watched.start()

    def decode(count: int, between: Callable[[], None]) -> None:
        columns = count * case.block - case.prompt % case.block
        with bench.autocast():
            generate(
                model, asked, case.completion, decoder_of(case), completions=case.completions,
                batch=case.batch, rows=rows, between=between,
                ended=lambda rows, _, written: [tokens >= columns for tokens in written],
            )  # fmt: skip

    decode(2, lambda: None)  # kernels are compiled and chosen
    with bench.counted_memory() as peak:
        decode(timed + 1, between)
        shares = watched.stop()
    first, *later = bench.between(stamps)
    speed = case.batch / (first + (blocks - 1) * statistics.median(later))
    flops = rollout_flops(
        case.shape, case.prompt, case.length - case.prompt, case.block, min(2, case.block), None,
        case.completions, prefix=True,
    )  # fmt: skip
    bench.add(
        name,
        rollouts_per_s=speed,
        rollouts_per_s_limit=bench.rate / flops,
        rollouts_share_of_limit=speed * flops / bench.rate,
        rollouts_block_s=[first, *later],
        rollouts_kernel_s=shares,
        measured_tokens=timed * case.block - case.prompt % case.block,
        tokens_per_rollout=case.length - case.prompt,
        cache_gib=cache_bytes(case.shape, case.batch, case.length, 2) / GIB,
        rollouts_before_gib=peak["before"],
        rollouts_peak_gib=peak["allocated"],
        rollouts_estimate_gib=_estimate(bench, case, decoding=True) / GIB,
    )
    bench.add(name, float32_tokens_as_without_cache=cache_agreement(bench, case))


def cache_agreement(bench: Rig, case: Case) -> float:
    """Share of tokens that the cache leaves as they are, in float32 over two layers of the same widths."""
    experts = case.model.experts
    if experts is not None:
        experts = replace(experts, layers=(1,))
    model = random_model(bench, replace(case.shape, layers=2, experts=experts), torch.float32)
    asked = make_prompts(bench, case).select(range(-(-case.compared // case.completions)))
    written = [
        generate(
            model, asked, min(64, case.completion), decoder_of(case, cache), completions=case.completions
        )
        for cache in ("prefix", "none")
    ]
    return float((written[0].written == written[1].written).float().mean())


# ── updates ──────────────────────────────────────────────────────────────────────────────────────


def buffer(bench: Rig, case: Case) -> Replay:
    """Rollouts of random tokens and rewards."""
    noise, rows = stream(0, "buffer", device=bench.device), 4 * case.micro_batch
    shape = rows, case.length
    tokens = torch.randint(2, 90, shape, generator=noise, device=bench.device)
    everywhere = torch.ones_like(tokens, dtype=torch.bool)
    written = torch.arange(case.length, device=bench.device) >= case.prompt
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


def updates(bench: Rig, name: str, case: Case, every: bool) -> None:
    """LoRA updates of c-DTM: masks in one block, or in every block in a pass of twice the positions."""
    masking = EveryBlock(case.block) if every else MaskCount(case.block, in_columns=True)
    policy, watched = policy_of(bench, case), Kernels(bench)
    replay, noise = buffer(bench, case), stream(0, "masks", device=bench.device)
    method, phase = CDTM(CDTMConfig(control_variate="one", guard=False)), Phase(0, 0.0, 1.0, 1.0)
    optimizer = torch.optim.AdamW(policy.trained(), lr=1e-5, fused=bench.on_gpu)
    policy.student.train()
    forward = list[float]()

    def micro_batch() -> None:
        drawn, weights, _ = replay.draw(case.micro_batch, 0.0, noise)
        states = masking.states(drawn, case.shape.mask_id, noise)
        with bench.autocast():
            loss = method.loss(policy, states, weights, phase)
        if bench.on_gpu:
            forward.append(torch.cuda.memory_allocated() / GIB)
        torch.autograd.backward(loss.value)

    def step() -> None:
        torch.nn.utils.clip_grad_norm_(policy.trained(), 2.0)
        optimizer.step()
        optimizer.zero_grad()

    def update() -> None:
        for _ in range(4):
            micro_batch()
        step()

    for _ in range(2):  # kernels are compiled; gradients are made, and added to
        micro_batch()
    step()
    with bench.counted_memory() as peak:
        speed = 4 * case.micro_batch / bench.seconds(update, 2, warm=0)
    watched.start()
    micro_batch()
    shares = watched.stop()
    optimizer.zero_grad()
    scored = _scored(case, every)
    flops = update_flops(case.shape, case.length, scored, case.lora, 0, merged=True, doubled=every)
    prefix = "every_block_" if every else ""
    found = {
        "rows_per_s": speed,
        "rows_per_s_limit": bench.rate / flops,
        "rows_share_of_limit": speed * flops / bench.rate,
        "updates_kernel_s": shares,
        "updates_before_gib": peak["before"],
        "updates_after_forward_gib": max(forward, default=None),
        "updates_peak_gib": peak["allocated"],
        "updates_estimate_gib": _estimate(bench, case, doubled=every) / GIB,
    }
    bench.add(name, **{prefix + key: value for key, value in found.items()})


def _scored(case: Case, every: bool) -> int:
    """Scored positions of a row, on average."""
    blocks = -(-(case.length - case.prompt) // case.block) if every else 1
    return blocks * (case.block + 1) // 2


def _estimate(bench: Rig, case: Case, decoding: bool = False, doubled: bool = False) -> int:
    """Bytes that `dtm fit` foresees, of decoding or of training."""
    size = torch.finfo(bench.dtype).bits // 8
    memory = estimate(
        case.shape,
        TrainingShape(
            rows=case.micro_batch,
            length=case.length,
            prompt=case.prompt,
            padded=False,
            together=case.completions,
            scored=_scored(case, doubled),
            rollouts=4 * case.micro_batch,
            lora=case.lora,
            doubled=doubled,
            compiled=bench.on_gpu,
            merged=True,
            held=max(1, HELD // case.shape.vocab_size),
            decoded=case.batch,
            candidates=min(case.batch * case.block, head_rows(case.shape.vocab_size)),
            cached=True,
            weight_bytes=size,
            compute_bytes=size,
        ),
    )
    if decoding:
        return memory.weights + memory.adapters + memory.rollouts
    return memory.persistent + memory.activations + memory.logits


PARTS: dict[str, Callable[[Rig, str, Case], None]] = {
    "rollouts": rollouts,
    "updates": partial(updates, every=False),
    "every-block": partial(updates, every=True),
}


def main() -> None:
    """Measure the chosen cases; a part that fails is reported, and the others go on."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), help="cases")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="measurements")
    parser.add_argument("--smoke", action="store_true", help="tiny shapes")
    parser.add_argument("--out", type=Path, help="file for the results")
    parser.add_argument("--publish", action="store_true", help=f"write {RESULTS.name} into results/")
    parser.add_argument("--commit", help="of a tree that was copied without its history")
    options = parser.parse_args()
    partly = options.smoke or options.only != list(CASES) or options.parts != list(PARTS)
    if options.publish and partly:
        parser.error("--publish measures everything: leave out --only, --parts and --smoke")
    out = RESULTS if options.publish else options.out
    bench = Rig(torch.device("cuda" if torch.cuda.is_available() else "cpu"), out)
    bench.keep(**provenance(None, options.commit), smoke=options.smoke)
    bench.matrix_product()
    failed = False
    for name in options.only:
        case = in_miniature(CASES[name]) if options.smoke else CASES[name]
        bench.add(name, parameters=parameters(case.shape), active_parameters=active_parameters(case.shape))
        for part in options.parts:
            try:
                PARTS[part](bench, name, case)
            except Exception as problem:  # one failed part must not cost the results of the others
                traceback.print_exc()
                bench.cases[name][f"{part}_failed"] = repr(problem).splitlines()[0]
                bench.keep(cases=bench.cases)
                bench.empty()
                failed = True
    if failed:
        sys.exit("a part failed, see above; the results of the others are kept")
    if options.publish:
        publish("families", RESULTS, [RESULTS], {})


if __name__ == "__main__":
    main()
