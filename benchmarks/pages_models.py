"""The tables of models and processes: families at their real shapes, and one run on two processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dtm.capacity.memory import TrainingShape, estimate
from dtm.models.adapters import LoRA
from llada8b_setup import WHOLE
from measuring import GIB

Found = Mapping[str, Any]
Table = tuple[Sequence[str], Sequence[Sequence[str]]]
BLOCK = 32
"""Tokens of a block, whose logits decoding holds at once."""
CASES = {
    "sdar-8b-block-4": "SDAR-8B, blocks of 4",
    "sdar-8b-block-32": "SDAR-8B, blocks of 32",
    "llada2.0-mini": "LLaDA2.0-mini, blocks of 32",
}


def rollouts(found: Found, own: Found, llada: Found) -> Table:
    """Rollouts per second with the exact prefix cache, beside LLaDA-8B's without and with an audited one."""
    rows = [
        [
            CASES[name],
            "prefix (exact)",
            *_rate(case, "rollouts", "rollouts_share_of_limit"),
            _peak(case, "rollouts"),
        ]
        for name, case in {**found["cases"], **own["cases"]}.items()
        if "rollouts_per_s" in case
    ]
    for kind, label in (("exact", "none"), ("cached", "block (audited)")):
        rate, limit = llada[f"{kind}_rollouts_per_s"], llada[f"{kind}_rollouts_per_s_floor"]
        rows.append(["LLaDA-8B", label, f"{rate:.3g}", f"{limit:.3g}", f"{rate / limit:.0%}", ""])
    return ["model", "cache", "rollouts per second", "floor", "share", "peak GiB (estimate)"], rows


def updates(found: Found, own: Found) -> Table:
    """Rows of LoRA updates per second, with masks in one block or in every block."""
    parts = {"": "one block", "every_block_": "every block"}
    rows = [
        [
            CASES[name],
            label,
            *_rate(case, f"{prefix}rows", f"{prefix}rows_share_of_limit"),
            _peak(case, f"{prefix}updates"),
        ]
        for name, case in {**found["cases"], **own["cases"]}.items()
        for prefix, label in parts.items()
        if f"{prefix}rows_per_s" in case
    ]
    return ["model", "masks in", "rows per second", "floor", "share", "peak GiB (estimate)"], rows


def memory() -> Table:
    """The estimate of a run of LLaDA-8B with adapters, in two precisions of the weights, in GiB."""
    sizes = TrainingShape(
        rows=12, length=428, scored=16, rollouts=240, lora=LoRA(), held=530, decoded=32, candidates=32 * BLOCK
    )
    bases = [replace(sizes, nf4=nf4) for nf4 in (False, True)]
    settings: Mapping[str, tuple[str, Mapping[str, Any]]] = {
        "weights": ("weights", {}),
        "adapters of student and π_a": ("adapters", {}),
        "gradient and Adam": ("optimizer", {}),
        "activations, kept": ("activations", {}),
        "activations, recomputed": ("activations", {"recompute": WHOLE.model.layers}),
        "logits of the scored positions": ("logits", {}),
        "decoding, without a cache": ("rollouts", {}),
        "decoding, with a cache": ("rollouts", {"cached": True}),
        "peak, recomputed, without a cache": ("total", {"recompute": WHOLE.model.layers}),
    }
    rows = [
        [
            name,
            *(f"{getattr(estimate(WHOLE.model, replace(b, **changes)), part) / GIB:.1f}" for b in bases),
        ]
        for name, (part, changes) in settings.items()
    ]
    return ["", "bfloat16", "NF4"], rows


def _rate(case: Found, what: str, share: str) -> tuple[str, str, str]:
    """A rate, its floor, and the share of it."""
    return f"{case[f'{what}_per_s']:.3g}", f"{case[f'{what}_per_s_limit']:.3g}", f"{case[share]:.0%}"


def _peak(case: Found, part: str) -> str:
    """A measured peak of memory, and the estimate."""
    return f"{case[f'{part}_peak_gib']:.1f} ({case[f'{part}_estimate_gib']:.1f})"


def processes(found: Found) -> Table:
    """The same run on one and on two processes of one GPU."""
    rows = [
        [
            name,
            *(f"{case[number]['seconds_per_step'] * 1e3:.0f}" for number in ("1", "2")),
            f"{case['loss_difference']:.1e}",
            f"{case['equal_rewards']:.0%}",
            _saved(case),
            *(
                f"{case[number]['peak_gib']:.2f} ({case[number]['estimate_gib']:.2f})"
                for number in ("1", "2")
            ),
        ]
        for name, case in found["cases"].items()
    ]
    rows += [[f"{name}: failed", *[""] * 7] for name in found["failed"]]
    head = ["", "ms per step, one process", "two", "largest difference of a loss", "equal rewards"]
    saved = "seconds saved by rollouts ahead, one process; two"
    return [*head, saved, "peak GiB of one process (estimate)", "of each of two"], rows


def _saved(case: Found) -> str:
    """Seconds that drawing ahead has saved, with one and with two processes."""
    saved = [case[number]["saved_seconds"] for number in ("1", "2")]
    return "; ".join(f"{seconds:.1f}" for seconds in saved if seconds is not None)
