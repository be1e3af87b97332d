"""Warnings of a run and how to fix them, read from its events and its summary."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dtm.loop.base import reading
from dtm.report.outcome import outcome_of
from dtm.report.page.log import Log

COLLAPSE = 0.5
"""Diversity, as a share of the base's, below which there is a warning."""
LESS_VALID = 0.05
"""Loss of validity above which there is a warning."""


def advice(log: Log, summary: Mapping[str, Any]) -> list[dict[str, str]]:
    """Return warnings about a run's numbers, each with a remedy."""
    outcome = outcome_of(summary)
    found = [
        *_outcome(outcome),
        *(_phase(row) for row in log.warned if not _is_told(row, outcome)),
        *_unlisted(log),
        *_shortcuts(log.fallback),
        *_skipped(log.skipped),
        *_too_long(summary),
    ]
    base, tuned = (rows.get("evaluation") for rows in (log.first, log.last))
    if base is not None and tuned is not None and base is not tuned:
        found += _side_effects(base, tuned)
    return [{"what": what, "fix": fix} for what, fix in found]


def _outcome(outcome: Mapping[str, str]) -> list[tuple[str, str]]:
    if outcome["kind"] == "learnt":
        return []
    what, _, rest = outcome["text"].partition(". ")
    cause, _, fix = rest.rpartition(": ")
    risen = "may not have risen" if outcome["kind"] == "not measurable" else "has not risen"
    because = f" {cause}." if cause else ""
    return [(f"The held-out reward {risen} ({outcome['kind']}): {what}.{because}", fix)]


def _phase(row: Mapping[str, Any]) -> tuple[str, str]:
    name = f"Phase {int(row['phase']) + 1}"
    if row.get("cause"):
        cause, _, fix = str(row["cause"]).rpartition(": ")
        absorbed = reading(row.get("absorbed"), row.get("absorbed_error"))
        return f"{name} (absorbed: {absorbed}): {cause}.", fix
    what = f"{name}: {row['ess']:.1%} of the rollouts carry the weights."
    return what, "use --tilt.step auto, or a smaller --tilt.step"


def _is_told(row: Mapping[str, Any], outcome: Mapping[str, str]) -> bool:
    """Return whether the warning of the outcome names this phase and its cause."""
    named = f"In phase {int(row['phase']) + 1} {row.get('cause')}"
    return outcome["kind"] != "learnt" and named in outcome["text"]


def _unlisted(log: Log) -> list[tuple[str, str]]:
    """Count the phases with a warning that are not listed: a long run may have thousands."""
    if not log.unlisted:
        return []
    what = f"{log.unlisted:,} phases before phase {int(log.warned[0]['phase']) + 1} have such warnings too."
    return [(what, "read the rows of phases in metrics.jsonl: cause and ess")]


def _shortcuts(fallback: str | None) -> list[tuple[str, str]]:
    if fallback is None:
        return []
    what = f"Rollouts changed to exact decoding: {fallback}."
    return [(what, "use fewer approximations (--decoding.cache none, a higher --decoding.certainty)")]


def _skipped(skipped: int) -> list[tuple[str, str]]:
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
