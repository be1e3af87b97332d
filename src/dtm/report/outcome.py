"""Classify the outcome of a run: whether it has learnt, and if not, the cause and the remedy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from dtm.tilts import LOW_ESS

Kind = Literal["learnt", "nothing to learn", "step too large", "not absorbed"]


def outcome(
    summary: Mapping[str, Any], phases: Sequence[Mapping[str, Any]], anneals: bool = True
) -> dict[str, str]:
    """Return the kind of a finished run's outcome and a sentence about it, from its summary and phases.

    A run has learnt if the held-out reward rose. If not, the phases show the cause: they took no step, their
    ESS was low, or the updates were too small. ``anneals``: phases have a tilt.
    """
    before, after = summary["base"]["reward"], summary["tuned"]["reward"]
    moved = f"held-out reward {before:.4g} → {after:.4g}"
    if summary["steps"] and after > before:
        return _made("learnt", moved)
    if not summary["steps"]:
        return _made(
            "nothing to learn",
            "all completions earned the same reward, so no step was taken. Use a reward that tells "
            "completions apart, more --replay.completions, or a base that earns it sometimes",
        )
    if "best" in summary and before >= summary["best"]:
        return _made("nothing to learn", f"the base earns the best possible reward already; {moved}")
    ess = min((row["ess"] for row in phases if row["steps"]), default=1.0)
    if anneals and ess < LOW_ESS:
        return _made(
            "step too large",
            f"{moved}. The weights rested on {ess:.1%} of the rollouts: use --tilt.step auto, or a smaller "
            "--tilt.step",
        )
    longer = "--tilt.max-steps" if anneals else "--iterate.iterations"
    remedy = f"Raise --optimizer.lr or {longer}; if updates are noisy, raise --replay.prompts"
    cause = next((f"In phase {row['phase'] + 1} {row['cause']}" for row in phases if row.get("cause")), None)
    return _made("not absorbed", f"{moved}. {cause or remedy}")


def sentence(found: Mapping[str, str]) -> str:
    """Format the outcome as one line."""
    return f"{found['kind']}: {found['text']}"


def _made(kind: Kind, text: str) -> dict[str, str]:
    return {"kind": kind, "text": text}
