"""Collect the data of a page as one JSON value, from the files of the runs' folders."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dtm.config import RunConfig
from dtm.config.budget import SPENT, Budget
from dtm.config.serialise import read_mapping, to_yaml
from dtm.errors import CheckpointError, DtmWarning, require
from dtm.evaluation.reveals import as_text
from dtm.loop.base import reading
from dtm.report.card import without_folders
from dtm.report.outcome import outcome_of
from dtm.report.page.advice import advice
from dtm.report.page.curves import charts, tables
from dtm.report.page.drawings import drawing, scene
from dtm.report.page.log import Log
from dtm.report.page.samples import (
    Evaluated,
    Evaluations,
    histogram,
    moved,
    spread_out,
    stratified,
)
from dtm.runs.events import is_number
from dtm.runs.folder import RunFolder, read_object

SAMPLES = 320
"""Largest number of samples of a page, over all of its runs."""
CLIP, PROMPT, TOKEN = 2000, 1200, 60
"""Largest number of characters of a completion, a prompt and a token on a page."""
POINTS = 300
"""Largest number of points of a curve; fewer on a page with many runs."""
MOVIES = 3
"""Number of evaluations whose reveals are shown: the base's, the last, and one in between."""
LEVELS = 5
"""Levels of detail: each has half the samples and points of the one before, and a quarter of the text."""


@dataclass(frozen=True, slots=True)
class PageRun:
    """A run on a page."""

    folder: RunFolder
    name: str
    group: str
    """Label of the run's group; runs of a group (seeds of a setting) share a colour."""


@dataclass(frozen=True, slots=True)
class Detail:
    """Level of detail: how much of a run's data the page holds."""

    samples: int
    points: int
    clip: int
    movies: int
    """Number of prompts whose reveals are shown."""

    @classmethod
    def of(cls, runs: int, level: int) -> Detail:
        """Return the detail of each run of a page; higher levels are smaller."""
        share = max(SAMPLES // max(runs, 1) >> level, 4)
        points = max(min(POINTS, 12 * POINTS // max(runs, 1)) >> level, 20)
        return cls(share, points, CLIP >> 2 * level, 4 >> level if runs <= 12 else 1)


def page_data(subjects: Sequence[PageRun], title: str, level: int = 0) -> dict[str, Any]:
    """Return the data of a page's runs, at a level of detail."""
    detail = Detail.of(len(subjects), level)
    axis = common_axis([subject.folder.read_config().budget for subject in subjects])
    return {"title": title, "axis": axis, "runs": [run_data(subject, detail) for subject in subjects]}


def common_axis(budgets: Sequence[str | None]) -> str:
    """Return the column for the x-axis of the curves at first: tokens if runs share a budget of tokens.

    >>> common_axis(["6e6tokens", "6e6tokens"]), common_axis(["6e6tokens"]), common_axis([None, None])
    ('spent_tokens', 'step', 'step')
    """
    (first, *others), shared = budgets, len(set(budgets)) == 1
    of_tokens = first is not None and Budget.parse(first).unit == "tokens"
    return "spent_tokens" if others and shared and of_tokens else "step"


def run_data(subject: PageRun, detail: Detail) -> dict[str, Any]:
    """Return the data of one run: its settings, curves, warnings and samples."""
    folder, config = subject.folder, subject.folder.read_config()
    require(
        folder.kind == "train",
        f"{folder.path} is a run of dtm {folder.kind}; a page shows runs of dtm train",
        CheckpointError,
    )
    summary = read_object(folder.summary) if folder.is_finished else {}
    evaluations = Evaluations(folder.samples)
    log = Log.read(folder.metrics, detail.points, evaluations.interval)
    found = tables(log.curves)
    drawn = scene(config)
    return {
        "name": subject.name,
        "group": subject.group,
        "finished": bool(summary),
        "verdict": verdict(log, summary),
        "facts": facts(folder, config, log, summary),
        "measures": measures(log),
        "config": to_yaml(shorten_paths(read_mapping(folder.config))),
        "tables": found,
        "charts": charts(found, log.best),
        "phases": [_phase(row) for row in log.phases],
        "scene": drawn,
        "samples": samples(evaluations, drawn, detail),
        "histogram": histogram(evaluations),
        "moved": _moved(evaluations, drawn, detail),
        "movies": movies(evaluations, drawn, detail),
        "warnings": advice(log, summary),
    }


def shorten_paths(settings: Any) -> Any:
    """Shorten the paths among nested settings."""
    if isinstance(settings, Mapping):
        return {name: shorten_paths(value) for name, value in settings.items()}
    if isinstance(settings, list):
        return [shorten_paths(value) for value in settings]
    return without_folders(settings) if isinstance(settings, str) else settings


def verdict(log: Log, summary: Mapping[str, Any]) -> dict[str, str]:
    """Return the outcome as a sentence, and its kind: learnt, not learnt, not measurable, or unfinished."""
    moved = ""
    if len(log.rewards) > 1:
        before, after = log.rewards
        verb = "rose" if after > before else "fell" if after < before else "stayed"
        moved = f"held-out reward {verb} from {before:.3g} to {after:.3g}"
    if not summary:
        step = max((row["step"] for row in log.last.values()), default=0)
        so_far = f": {moved} so far" if moved else ""
        return {"kind": "unfinished", "text": f"Not finished, at step {step:,}{so_far}."}
    kind = outcome_of(summary)["kind"]
    closed = summary.get("gap_closed")
    gap = f", {closed:.0%} of the way to the best possible" if closed is not None and closed > 0 else ""
    if kind == "learnt":
        return {"kind": "learnt", "text": f"Learnt: the {moved or 'run has finished'}{gap}."}
    if kind == "not measurable":
        return {"kind": kind, "text": f"Not measurable: the {moved}, within two standard errors."}
    return {"kind": "not learnt", "text": f"Not learnt ({kind}): the {moved or 'run took no step'}."}


def facts(
    folder: RunFolder,
    config: RunConfig,
    log: Log,
    summary: Mapping[str, Any],
) -> list[tuple[str, str]]:
    """Return the main settings of the run, and its machine."""
    try:
        started = folder.started
    except CheckpointError as problem:
        warnings.warn(str(problem), DtmWarning, stacklevel=2)
        started = {}
    fields = ", ".join(f"{name} {value}" for name, value in asdict(config.method).items() if name != "name")
    last = max(log.last.values(), key=lambda row: row["step"], default={})
    seconds = max((float(row.get("seconds") or 0) for row in log.last.values()), default=0.0)
    memory = summary.get("peak_memory")
    found = {
        "Recipe": config.recipe,
        "Task": config.task.kind,
        "Method": f"{config.method.name} ({fields})" if fields else config.method.name,
        "Base": None if config.model.base is None else without_folders(config.model.base),
        "Seed": config.seed,
        "Command": started.get("command"),
        "Machine": started.get("gpu") or started.get("processor"),
        "Processes": started.get("processes"),
        "Versions": ", ".join(f"{name} {started[name]}" for name in VERSIONS if name in started),
        "Commit": started.get("commit"),
        "Budget": config.budget,
        "Steps": f"{last.get('step', 0):,}",
        "Time": f"{seconds / 60:.1f} minutes",
        "Peak memory": f"{memory / 2**30:.2f} GiB" if memory else None,
        "Ended": summary.get("finished"),
    }
    return [(name, str(value)) for name, value in found.items() if value not in (None, "")]


def measures(log: Log) -> list[dict[str, Any]]:
    """Return base and latest value of every held-out measure."""
    if "evaluation" not in log.last:
        return []
    base, tuned = log.first["evaluation"], log.last["evaluation"]
    names = [name for name in base if is_number(base[name]) and name not in (*SPENT, *NO_MEASURE)]
    return [
        {"name": name, "base": base[name], "tuned": tuned.get(name)}
        | ({"best": log.best} if name == "reward" and log.best is not None else {})
        for name in names
    ]


VERSIONS = ("dtm", "python", "torch")
NO_MEASURE = ("step", "tilt", "seconds", "best")
PHASE = ("phase", "tilt", "h", "steps", "ess", "absorbed", "reward", "reason")


def _phase(row: Mapping[str, Any]) -> dict[str, Any]:
    shown = {name: row.get(name) for name in PHASE}
    return shown | {"reading": reading(row.get("absorbed"), row.get("absorbed_error"))}


def samples(evaluations: Evaluations, drawn: dict[str, Any], detail: Detail) -> dict[str, Any]:
    """Return a stratified selection of the samples, and the number of all."""
    chosen = stratified(evaluations, detail.samples)
    rows = [{"step": one.step, "tilt": one.tilt, **_sample(row, drawn, detail.clip)} for one, row in chosen]
    return {"total": evaluations.total, "rows": rows}


def _sample(row: Mapping[str, Any], drawn: dict[str, Any], clip: int) -> dict[str, Any]:
    prompt, completion = as_text(row["prompt"]), as_text(row["completion"])
    found = {
        "prompt": clipped(prompt, min(clip, PROMPT)),
        "completion": clipped(completion, clip),
        "reward": row["reward"],
    }
    picture = drawing(drawn, row["prompt"], row["completion"])
    return found if picture is None else {**found, "drawing": picture}


def _moved(evaluations: Sequence[Evaluated], drawn: dict[str, Any], detail: Detail) -> dict[str, Any] | None:
    found = moved(evaluations)
    if found is None:
        return None
    for side in ("gained", "lost"):
        found[side] = [
            _sample(change["row"], drawn, detail.clip // 4)
            | {"before": change["before"], "after": change["after"]}
            for change in found[side]
        ]
    return found


def movies(evaluations: Evaluations, drawn: dict[str, Any], detail: Detail) -> list[dict[str, Any]]:
    """Return the recorded reveals by prompt, each with the replays of some evaluations, the base's first."""
    recorded = evaluations.recorded
    prompts: dict[str, list[dict[str, Any]]] = {}
    for one in (evaluations[recorded[place]] for place in spread_out(len(recorded), MOVIES)):
        for row in one.rows:
            if "replay" in row:
                sample = {"step": one.step, "tilt": one.tilt, **_sample(row, drawn, detail.clip)}
                replay = sample | _replay(row["replay"])
                prompts.setdefault(as_text(row["prompt"]), []).append(replay)
    shown = list(prompts.items())[: detail.movies]
    return [{"prompt": clipped(prompt, PROMPT), "replays": replays} for prompt, replays in shown]


def _replay(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recorded replay with shortened tokens."""
    options = [[[clipped(text, TOKEN), p] for text, p in row] for row in found["alternatives"]]
    return {**found, "tokens": [clipped(text, TOKEN) for text in found["tokens"]], "alternatives": options}


def clipped(text: str, most: int) -> str:
    """Return the text, or its start with the number of omitted characters.

    >>> clipped("abcdef", 4)
    'abcd … (2 more characters)'
    """
    return text if len(text) <= most else f"{text[:most]} … ({len(text) - most:,} more characters)"
