"""Classify the outcome of a run: whether it has learnt, and if not, the cause and the remedy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from dtm.tilts import LOW_ESS

Kind = Literal["learnt", "nothing to learn", "step too large", "not absorbed", "not measurable"]
CERTAIN = 2.0
"""Standard errors by which the held-out reward must rise before a run is said to have learnt."""
FULL = 0.98
"""Share of the room at which completions count as cut off."""


def outcome(
    summary: Mapping[str, Any],
    phases: Sequence[Mapping[str, Any]],
    anneals: bool = True,
    room: int | None = None,
) -> dict[str, str]:
    """Return the kind of a finished run's outcome and a sentence about it, from its summary and phases.

    A run has learnt if the held-out reward rose by more than `CERTAIN` standard errors ("rise_error" of the
    summary; without it, if it rose at all). If not, the phases show the cause: they took no step, their ESS
    was low, or the updates were too small. ``anneals``: phases have a tilt. ``room``: tokens of a completion
    that should end before them; None: completions have one length.
    """
    before, after = summary["base"]["reward"], summary["tuned"]["reward"]
    error = summary.get("rise_error")
    moved = f"held-out reward {before:.4g} → {after:.4g}"
    causes = [row for row in phases if row.get("cause")]
    cause = f"In phase {causes[0]['phase'] + 1} {causes[0]['cause']}" if causes else None
    if summary["steps"] and after - before > CERTAIN * (error or 0.0):
        return _made("learnt", f"{moved}. {cause}" if cause else moved)
    shortest = min(summary[model].get("length", 0.0) for model in ("base", "tuned"))
    if room is not None and shortest >= FULL * room:
        return _made(
            "nothing to learn",
            f"{moved}. Nearly all completions fill their {room} tokens without an end token, so answers are "
            "cut off: raise --task.completion-length",
        )
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
    unmeasured = all(row["absorbed_error"] is None for row in causes)
    if unmeasured and error and abs(after - before) <= CERTAIN * error:
        unclear = f"{moved}, a change within two standard errors (each {error:.2g})"
        text = f"{unclear}. {cause or remedy}; to measure smaller changes, raise --evaluation.prompts"
        return _made("not measurable", text)
    return _made("not absorbed", f"{moved}. {cause or remedy}")


def outcome_of(summary: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the recorded outcome of a run; runs of earlier releases have none and count as learnt."""
    found: Mapping[str, str] = summary.get("outcome", {"kind": "learnt", "text": ""})
    return found


def sentence(found: Mapping[str, str]) -> str:
    """Format the outcome as one line."""
    return f"{found['kind']}: {found['text']}"


def _made(kind: Kind, text: str) -> dict[str, str]:
    return {"kind": kind, "text": text}
