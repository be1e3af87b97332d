"""Export a run's model to a folder for others: an adapter, merged weights, or all weights, with a card."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from dtm.errors import CheckpointError, require
from dtm.evaluation.results import FOLDER, read_result
from dtm.evaluation.subject import ModelFiles
from dtm.models.export import CONFIG as ADAPTER
from dtm.models.export import WEIGHTS, merge_adapter, read_adapter
from dtm.models.families import read_shape
from dtm.models.tokenizers import PARTS
from dtm.report.card import CURVES, FINGERPRINT, ExportRecords, Form, model_card, without_folders
from dtm.report.figures import annealing_figure
from dtm.runs.events import read_events
from dtm.runs.folder import RunFolder, make_folder, read_object, reading
from dtm.writing import copy_file, save_figure, write_json, write_text

TOKENIZER = ("tokenizer*", "special_tokens_map.json", "chat_template*", "added_tokens.json", *PARTS)
"""Files of the base that an export with all weights also needs."""


def export_run(run: RunFolder, out: Path, merged: bool = False) -> None:
    """Write a finished run's model to ``out``; ``merged`` adds an adapter into its base's own weights."""
    model = run.finished(run.model)
    with reading(run.finished(run.summary)):
        summary = read_object(run.summary)
        whole = run.kind != "train" or "tuned" in summary
        require(whole, f"{run.summary} is damaged: it has no 'tuned'", CheckpointError)
    has_adapter = (model / ADAPTER).is_file()
    require(
        not out.exists() or (out.is_dir() and not any(out.iterdir())),
        f"{out} is not empty: choose another folder with --out",
        CheckpointError,
    )
    require(
        has_adapter or not merged,
        f"{run.path} trained all weights and has no adapter to merge: leave --merged out",
    )
    made_by, groups = {"commit": run.started.get("commit")}, _fingerprint(run)  # before anything is written
    form: Form = "weights" if not has_adapter else "merged" if merged else "adapter"
    make_folder(out)
    if form == "merged":
        source = ModelFiles.find(str(run.path))
        weights, lora = read_adapter(model, read_shape(source.weights, source.asked)[1])
        merge_adapter(weights, lora, out, source.weights, source.asked)
    elif form == "adapter":
        _copy((model / ADAPTER, model / WEIGHTS), out)
    else:
        tokenizer = ModelFiles.find(str(run.path)).tokenizer
        _copy((path for path in model.iterdir() if path.suffix in (".json", ".safetensors")), out)
        _copy((path for pattern in TOKENIZER for path in tokenizer.glob(pattern)), out)
    if groups:
        write_json(out / FINGERPRINT, groups)
    facts = ExportRecords(groups, _curves(run, out))
    card = model_card(run.read_config(), made_by | summary, form, _results(run), facts)
    write_text(out / "README.md", card)


def _fingerprint(run: RunFolder) -> dict[str, Any]:
    """Read the run's fingerprint without folders of this machine; runs of earlier releases have none."""
    if not run.fingerprint.is_file():
        return {}
    with reading(run.fingerprint):
        return {
            group: {name: without_folders(v) if isinstance(v, str) else v for name, v in facts.items()}
            for group, facts in read_object(run.fingerprint).items()
        }


def _curves(run: RunFolder, out: Path) -> bool:
    """Draw the held-out measures against the optimiser's steps; return False if the run has logged none."""
    events = read_events(run.metrics, "evaluation") if run.metrics.is_file() else []
    if events:
        best = read_object(run.summary).get("best")
        figure = annealing_figure(events, best=best, axis="optimiser steps", amount="step")
        save_figure(figure, out / CURVES)
    return bool(events)


def _copy(files: Iterable[Path], out: Path) -> None:
    for path in files:
        copy_file(path, out / path.name)


def _results(run: RunFolder) -> list[dict[str, Any]]:
    """Read the results of `dtm eval --task` for this run."""
    return [read_result(path) for path in sorted((run.path / FOLDER).glob("*.json"))]
