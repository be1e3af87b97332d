"""LLaDA-8B's shape on one GPU, against what its multiplications cost: python benchmarks/llada8b.py.

Random weights, made on the device. Rollouts: prompts of 172 tokens, six completions of each (as in the
paper's Countdown), 256 more in blocks of 32 at two tokens a step. Updates: the c-DTM loss on micro-batches of
12 (fast: the best of 12 and 24, π_a merged), adapters of rank 128 on the four published projections. A
timing is the median after warm-up; beside it stands the floor, its operations at the rate of a large matrix
product measured in the same run. A random model never writes an end token, so for the ragged mix the
benchmark itself says when a row is done: after a length drawn uniformly from 60 to 256 tokens.

Results are written after every part, with its commit; --only PART runs one and keeps the others, --smoke all
of them in miniature on a CPU.
"""

from __future__ import annotations

import argparse
import json
import time
import traceback
from pathlib import Path
from typing import Any

import torch

from dtm.runs.environment import commit, environment
from dtm.tasks.countdown.reward import reward
from llada8b_profile import profile, switches
from llada8b_rollouts import cached, cheap, exact, fp8, ragged
from llada8b_setup import SMALL, WHOLE, Rig
from llada8b_updates import card, fast, lean, nf4

RELEASED = {"exact_rollouts_per_s": 0.363, "train_rows_per_s": 18.6, "train_peak_gib_nf4": 47.2}
"""The code released with the paper at the same shape on one H200 (NF4), as measured once, not here."""


def phase(bench: Rig) -> None:
    """The paper's Countdown phase, computed from the measured parts: it is not run."""
    found, rollouts = bench.results, 480 + 32 * 120  # a buffer, 31 refreshes and the measurement at the end
    text = "Let me think. 3 + 4 = 7. <answer>(3 + 4) * 5</answer>" * 4
    columns: dict[str, Any] = {"numbers": [[3, 4, 5]] * 480, "target": [35] * 480}
    scoring = bench.seconds(lambda: reward([""] * 480, [text] * 480, **columns), 3) * rollouts / 480
    speeds = {"exact": "exact_rollouts_per_s", "cached, ragged": "ragged_rollouts_per_s"}
    if not {"train_fast", *speeds.values()} <= found.keys():
        bench.say("the phase needs exact, ragged and fast to have been measured")
        return
    step = found["train_fast"]["optimizer_s"]
    training = 800 * 96 / found["train_rows_per_s"]
    computed = {}
    for name, speed in speeds.items():
        parts = {"rollouts": rollouts / found[speed], "training": training - 800 * step}
        parts |= {"reward": scoring, "other": 800 * step}
        total = sum(parts.values())
        computed[name] = {"seconds": total, "shares": {part: value / total for part, value in parts.items()}}
        bench.say(f"Countdown phase, {name}: {total / 3600:.2f} h (computed)")
    bench.keep(countdown_phase={"computed": True, "rollouts": rollouts, "rows": 800 * 96, **computed})


PARTS = {
    "cached": cached,
    "fast": fast,
    "ragged": ragged,
    "fp8": fp8,
    "exact": exact,
    "lean": lean,
    "nf4": nf4,
    "card": card,
    "phase": phase,
    "cheap": cheap,
    "switches": switches,
    "profile": profile,
}
"""In the order in which they are run: what comes last is left out where time is short."""


def table(results: dict[str, Any]) -> str:
    """The headline numbers with their floors and what the released code reaches."""
    released = {} if results["smoke"] else RELEASED
    lines = ["| | measured | floor or estimate | released code |", "|---|--:|--:|--:|"]
    rows = {
        "exact rollouts/s": ("exact_rollouts_per_s", "exact_rollouts_per_s_floor"),
        "cached rollouts/s": ("cached_rollouts_per_s", "cached_rollouts_per_s_floor"),
        "ragged rollouts/s": ("ragged_rollouts_per_s", "ragged_rollouts_per_s_floor"),
        "cached, one refresh, rollouts/s": ("cheap_rollouts_per_s", "cheap_rollouts_per_s_floor"),
        "ragged, one refresh, rollouts/s": ("cheap_ragged_rollouts_per_s", ""),
        "cached, FP8, rollouts/s": ("fp8_rollouts_per_s", ""),
        "ragged, FP8, rollouts/s": ("fp8_ragged_rollouts_per_s", ""),
        "training rows/s": ("train_rows_per_s", "train_rows_per_s_floor"),
        "peak GiB, fast": ("train_peak_gib_fast", "train_fast"),
        "peak GiB, bf16, lean": ("train_peak_gib_bf16", "train_lean_bf16"),
        "peak GiB, NF4, lean": ("train_peak_gib_nf4", "train_lean_nf4"),
    }
    for name, (key, beside) in rows.items():
        floor = results.get(beside)
        if isinstance(floor, dict):
            floor = floor["estimate_gib"]
        shown = (
            "–" if value is None else f"{value:.3g}" for value in (results.get(key), floor, released.get(key))
        )
        lines.append(f"| {name} | {' | '.join(shown)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure the parts that are asked for, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=PARTS, action="append", help="one part; may be given again")
    parser.add_argument("--smoke", action="store_true", help="everything in miniature, on the CPU")
    parser.add_argument("--minutes", type=float, default=30.0, help="no part begins after that many")
    parser.add_argument(
        "--out", type=Path, help="file of the results (default: results/llada8b.json, none for --smoke)"
    )
    options = parser.parse_args()
    device = torch.device("cpu" if options.smoke else "cuda")
    out = options.out or (None if options.smoke else Path("results/llada8b.json"))
    bench = Rig(device, out, sizes=SMALL if options.smoke else WHOLE)
    if out is not None and out.exists() and options.only:
        bench.results = json.loads(out.read_text(encoding="utf-8"))
    bench.keep(environment=environment(), smoke=options.smoke)
    bench.matrix_product()
    failed: list[str] = []
    for name in options.only or PARTS:
        if time.perf_counter() - bench.begin > 60 * options.minutes:
            bench.say(f"{name} is left out: {options.minutes:g} minutes are over")
            continue
        bench.say(f"── {name}")
        try:
            PARTS[name](bench)
            made = {"commit": commit(), "matmul_tflops": bench.rate / 1e12}
            made["matmul_tflops_sustained"] = bench.results["matmul_tflops_sustained"]
            bench.keep(measured_at=bench.results.get("measured_at", {}) | {name: made})
        except Exception:  # the parts that follow are worth having all the same
            traceback.print_exc()
            failed.append(name)
        bench.empty()
    print(table(bench.results))
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
