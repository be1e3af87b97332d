"""The tables of docs/speed.md: rates and variants at LLaDA-8B's shape, and the audit of eight bits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Found = Mapping[str, Any]
Table = tuple[Sequence[str], Sequence[Sequence[str]]]


def rates(found: Found) -> Table:
    """Rollouts and rows of updates per second, with floors, the targets, and the released code."""

    def others(of: Mapping[str, float], best: float) -> str:
        return ", ".join(f"{batch}: {rate:.3g}" for batch, rate in of.items() if rate != best)

    exact, cached = found["exact_rollouts_per_s"], found["cached_rollouts_per_s"]
    ragged, fast = found["ragged_setting"], found["train_fast"]
    rows = [
        [
            f"exact rollouts, batch 30 ({others(found['exact_rollouts_per_s_by_batch'], exact)})",
            f"{exact:.3f}",
            f"{found['exact_rollouts_per_s_floor']:.2f}",
            "0.8",
            "0.363",
        ],
        [
            f"cached rollouts, batch 128 ({others(found['cached_rollouts_per_s_by_batch'], cached)})",
            f"{cached:.2f}",
            f"{found['cached_rollouts_per_s_floor']:.1f}",
            "6",
            "",
        ],
        [
            f"cached and ragged: completions of {ragged['mean_tokens']:.0f} tokens on average leave the "
            f"batch when finished, batch {ragged['batch']}",
            f"{found['ragged_rollouts_per_s']:.2f}",
            f"{found['ragged_rollouts_per_s_floor']:.1f}",
            "9",
            "",
        ],
        ["cached, in eight bits, batch 64", f"{found['fp8_rollouts_per_s']:.1f}", "", "7.7", ""],
        ["cached and ragged, in eight bits", f"{found['fp8_ragged_rollouts_per_s']:.1f}", "", "12", ""],
    ]
    for label, part, target, released in (
        ("rows of updates, nothing recomputed", fast, "32", "18.6 in 47.2 GiB"),
        ("the same, all recomputed", found["train_lean_bf16"], "in 24 GiB", ""),
        ("the same, NF4", found["train_lean_nf4"], "in 14 GiB", ""),
        ("NF4, limited to 12 GiB", found["train_small_card"], "in 12 GiB", ""),
    ):
        memory = f"{part['peak_gib']:.1f} GiB (estimate {part['estimate_gib']:.1f})"
        rows.append(
            [
                f"{label}, micro-batch {part['setting']['micro_batch']}",
                f"{part['rows_per_s']:.1f} in {memory}",
                f"{part['rows_per_s_floor']:.0f}",
                target,
                released,
            ]
        )
    return ["per second", "measured", "floor", "target", "released code"], rows


def switches(found: Found) -> Table:
    """Milliseconds of a pass with variants of its operations."""
    labels = {
        "fused products": "default",
        "separate products": "separate products instead of fused ones",
        "fused products, sums apart": "sums out of place instead of in place",
        "fused products, flash attention": "flash attention instead of cuDNN's",
        "eight bits": "eight bits",
    }
    rows = [
        [label, *(f"{found['switches'][name][part]:,.0f}" for part in ("window_ms", "full_ms"))]
        for name, label in labels.items()
    ]
    return ["milliseconds of a pass", "128 windows of 32", "whole rows"], rows


def phase(found: Found) -> Table:
    """The computed time of the paper's Countdown phase."""
    labels = {"exact": "exact rollouts", "cached, ragged": "cached and ragged rollouts"}
    rows = []
    for name, label in labels.items():
        made = found["countdown_phase"][name]
        shares = (f"{made['shares'][part]:.0%}" for part in ("rollouts", "training"))
        rows.append([label, f"{made['seconds'] / 3600:.1f}", *shares])
    return ["computed, not measured", "hours", "of which rollouts", "updates"], rows


def fp8(found: Found) -> Table:
    """Decoding in eight bits with a cache against exact decoding, all rows of each phase."""
    last = {audit["tilt"]: audit for audit in found["audits"]}
    rows = [
        [
            f"a = {tilt:g}" if tilt else "base",
            str(audit["rows"]),
            f"{audit['agreement']:.0%}",
            f"{audit['reward_shift']:+.3f} ± {audit['error']:.3f}".replace("-", "−"),
        ]
        for tilt, audit in last.items()
    ]
    head = ["", "rows", "tokens as in exact decoding", "change of the mean reward, ± standard error"]
    return head, rows
