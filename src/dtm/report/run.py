"""The report of a finished run: figures, a summary, and a model card."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dtm.config import RunConfig
from dtm.loop.assemble import Assembly
from dtm.loop.progress import Progress
from dtm.report.card import Form, model_card
from dtm.report.figures import annealing_figure, phases_figure
from dtm.runs.events import read_events
from dtm.runs.folder import RunFolder, write_json, write_text


def write_report(folder: RunFolder, assembly: Assembly, progress: Progress) -> dict[str, Any]:
    """Figures, ``summary.json`` and the model card, from what the run has logged."""
    config, task, loop = assembly.run_config, assembly.task, assembly.loop
    made_by = json.loads((folder.path / "environment.json").read_text(encoding="utf-8"))["commit"]
    summary = summarise(config, progress, made_by)
    left_out = getattr(task, "too_long", {})
    if any(left_out.values()):
        summary["too_long"] = left_out
    folder.figures.mkdir(exist_ok=True)
    measured = read_events(folder.metrics, "evaluation")
    phases = [row | {"step": row["h"]} for row in read_events(folder.metrics, "phase")]
    figures = {
        "annealing": annealing_figure(measured, best=summary.get("best"), axis=loop.axis),
        "phases": phases_figure(phases) if loop.measures_absorbed else None,
        "samples": task.picture(
            read_samples(folder.samples, first=True), read_samples(folder.samples, first=False)
        ),
    }
    for name, figure in figures.items():
        if figure is not None:
            figure.savefig(folder.figures / f"{name}.png", dpi=150)
    form: Form = "weights" if config.adapter.rank is None else "adapter"
    write_text(folder.model / "README.md", model_card(config, summary, form))
    write_json(folder.summary, summary)
    return summary


def summarise(config: RunConfig, progress: Progress, commit: str | None = None) -> dict[str, Any]:
    """Base and tuned measures side by side, and the share of the possible gain that was reached."""
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


def read_samples(folder: Path, first: bool) -> list[tuple[Any, Any]]:
    """Prompts and completions of the first or the last evaluation."""
    files = sorted(folder.glob("*.jsonl"))
    rows = files[0 if first else -1].read_text(encoding="utf-8").splitlines()
    return [(row["prompt"], row["completion"]) for row in map(json.loads, rows)]
