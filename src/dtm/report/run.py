"""Write the report of a finished run: a summary, a model card, and a picture of its samples."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, stdev, variance
from typing import Any

from dtm.config import LanguageConfig, RunConfig
from dtm.loop.assembly import Assembly
from dtm.loop.meter import FEWEST
from dtm.loop.progress import Progress
from dtm.report.card import Form, model_card
from dtm.report.outcome import outcome
from dtm.runs.events import is_number, read_events, read_lines
from dtm.runs.folder import RunFolder
from dtm.writing import save_figure, write_json, write_text

Sample = tuple[Any, Any, Any]
"""A prompt, a completion and its reward, as `samples/` has them."""


def write_report(folder: RunFolder, assembly: Assembly, progress: Progress) -> dict[str, Any]:
    """Write ``summary.json``, the model card and the task's picture, from the run's logs."""
    config, task, loop = assembly.run_config, assembly.task, assembly.loop
    summary = summarise(config, progress, folder.started.get("commit"))
    left_out = getattr(task, "too_long", {})
    if any(left_out.values()):
        summary["too_long"] = left_out
    before, after = (read_samples(folder.samples, first) for first in (True, False))
    summary["rise_error"] = rise_error(before, after)
    room = task.completion_length if isinstance(config.task, LanguageConfig) else None
    phases = read_events(folder.metrics, "phase")
    summary["outcome"] = outcome(summary, phases, loop.measures_absorbed, room)
    # A run whose samples are lost can still finish.
    picture = task.picture(*map(_shown, (before, after))) if before and after else None
    if picture is not None:
        save_figure(picture, folder.figures / "samples.png")
    form: Form = "weights" if config.adapter.rank is None else "adapter"
    write_text(folder.model / "README.md", model_card(config, summary, form))
    write_json(folder.summary, summary)
    return summary


def summarise(config: RunConfig, progress: Progress, commit: str | None = None) -> dict[str, Any]:
    """Return base and tuned measures, and the share of the possible gain that was reached."""
    base, tuned = progress.evaluations[0], progress.evaluations[-1]
    summary: dict[str, Any] = {
        "recipe": config.recipe,
        "seed": config.seed,
        "commit": commit,
        "finished": progress.finished,
        "exact_because": progress.exact_because,
        "tilt": progress.tilt,
        "steps": progress.step,
        "minutes": round(progress.seconds / 60, 2),
        "budget": config.budget,
        **progress.spent,
        "peak_memory": progress.peak_memory,
        "base": {name: value for name, value in base.items() if name not in ("tilt", "best")},
        "tuned": {name: value for name, value in tuned.items() if name not in ("tilt", "best")},
    }
    if "best" in base:
        room = base["best"] - base["reward"]
        summary["best"] = base["best"]
        summary["gap_closed"] = (tuned["reward"] - base["reward"]) / room if room > 0 else None
    return summary


def rise_error(before: Sequence[Sample], after: Sequence[Sample]) -> float | None:
    """Return the standard error of the rise in mean reward between two evaluations; None if it is not known.

    It comes from the rises of the prompts, or from the completions if there are fewer than `FEWEST` prompts.
    """
    rewards = [_by_prompt(before), _by_prompt(after)]
    prompts = [prompt for prompt in rewards[0] if prompt in rewards[1]]
    if len(prompts) >= FEWEST:
        rises = [fmean(rewards[1][prompt]) - fmean(rewards[0][prompt]) for prompt in prompts]
        return stdev(rises) / math.sqrt(len(rises))
    drawn = [found[prompt] for found in rewards for prompt in prompts]
    if not drawn or min(map(len, drawn)) < 2:
        return None
    return math.sqrt(sum(variance(each) / len(each) for each in drawn)) / len(prompts)


def read_samples(folder: Path, first: bool) -> list[Sample]:
    """Read prompts, completions and rewards of the first or the last evaluation; empty without a file."""
    files = sorted(folder.glob("*.jsonl"))
    names = ("prompt", "completion", "reward")
    rows = read_lines(files[0 if first else -1], names) if files else ()
    return [(row["prompt"], row["completion"], row["reward"]) for row in rows]


def _by_prompt(samples: Sequence[Sample]) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for prompt, _, reward in samples:
        if is_number(reward):
            found.setdefault(json.dumps(prompt), []).append(reward)
    return found


def _shown(samples: Sequence[Sample]) -> list[tuple[Any, Any]]:
    return [(prompt, completion) for prompt, completion, _ in samples]
