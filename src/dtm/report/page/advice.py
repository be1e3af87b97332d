"""Warnings of a run and how to fix them, read from its events and its summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dtm.tilts import LOW_ESS

Rows = Sequence[Mapping[str, Any]]

COLLAPSE = 0.5
"""Diversity, as a share of the base's, below which there is a warning."""
LESS_VALID = 0.05
"""Loss of validity above which there is a warning."""


def advice(events: Mapping[str, Rows], summary: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return warnings about a run's numbers, each with a remedy."""
    evaluations = events.get("evaluation", ())
    found = [
        *_outcome(summary),
        *_phases(events.get("phase", ())),
        *_shortcuts(events.get("audit", ())),
        *_skipped(events.get("rollouts", ())),
        *_too_long(summary),
    ]
    if len(evaluations) > 1:
        found += _side_effects(evaluations[0], evaluations[-1])
    return [{"what": what, "fix": fix} for what, fix in found]


def _outcome(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    outcome = summary.get("outcome", {"kind": "learnt", "text": ""})
    if outcome["kind"] == "learnt":
        return []
    what, _, fix = outcome["text"].partition(". ")
    risen = "may not have risen" if outcome["kind"] == "not measurable" else "has not risen"
    return [(f"The held-out reward {risen} ({outcome['kind']}): {what}.", fix)]


def _phases(phases: Rows) -> list[tuple[str, str]]:
    found = []
    for row in phases:
        name = f"Phase {int(row['phase']) + 1}"
        if row.get("cause"):
            cause, _, fix = str(row["cause"]).rpartition(": ")
            found.append((f"{name} absorbed {_share(row.get('absorbed'))} of its tilt: {cause}.", fix))
        elif row.get("steps") and (row.get("ess") or 1.0) < LOW_ESS:
            what = f"{name}: {row['ess']:.1%} of the rollouts carry the weights."
            found.append((what, "use --tilt.step auto, or a smaller --tilt.step"))
    return found


def _shortcuts(audits: Rows) -> list[tuple[str, str]]:
    fallen = next((row["falls_back"] for row in audits if row.get("falls_back")), None)
    if fallen is None:
        return []
    what = f"Rollouts changed to exact decoding: {fallen}."
    return [(what, "use fewer approximations (--decoding.cache none, a higher --decoding.certainty)")]


def _skipped(rollouts: Rows) -> list[tuple[str, str]]:
    skipped = sum(row.get("skipped") or 0 for row in rollouts)
    if not skipped:
        return []
    return [(f"The reward gave None for {skipped:,} completions.", "return a number if it should count")]


def _too_long(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    count = sum(summary.get("too_long", {}).values())
    return [(f"{count:,} prompts were too long: dropped.", "raise --task.prompt-length")] if count else []


def _side_effects(base: Mapping[str, Any], tuned: Mapping[str, Any]) -> list[tuple[str, str]]:
    found = []
    for name, floor in (("distinct", 0.0), ("coverage", 1.0)):
        before, after = base.get(name), tuned.get(name)
        if before is not None and after is not None and after - floor < COLLAPSE * (before - floor):
            what = f"Diversity fell: {name} {before:.3g} → {after:.3g}. Few answers earn most of the reward."
            found.append((what, "stop at a smaller --tilt.final"))
    before, after = base.get("valid"), tuned.get("valid")
    if before is not None and after is not None and after < before - LESS_VALID:
        what = f"Fewer completions are valid: {before:.1%} → {after:.1%}."
        found.append((what, "use a smaller --tilt.step or --optimizer.lr, or more --replay.prompts"))
    return found


def _share(value: Any) -> str:
    return "an unknown share" if value is None else f"{value:.0%}"
