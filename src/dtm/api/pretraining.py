"""`dtm.pretrain`: train a base from scratch on a task's examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dtm.api.measuring import measure
from dtm.api.run import Run
from dtm.api.starting import held_run, start_run
from dtm.config import RunConfig
from dtm.loop.assembly import Assembly
from dtm.models.storage import save_model
from dtm.models.transformer import Transformer
from dtm.pretraining.pretrainer import pretrainer_of
from dtm.runs.checkpoint import has_checkpoint
from dtm.runs.events import Callback, JsonLines
from dtm.runs.folder import RunFolder
from dtm.runs.interrupts import Interrupted, Interrupts
from dtm.runs.resume import Resume, note_changes, require_same_config
from dtm.writing import write_json


def pretrain(
    config: RunConfig | Assembly | str,
    *,
    task: Any = None,
    out: str | Path | None = None,
    resume: Resume = False,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Train a recipe's base from scratch on the task's examples; pass its folder on as ``model.base``."""
    assembly, found = start_run(config, "pretrain", out, resume, task=task)
    if found is not None and found.is_finished:
        return Run(found)
    assert assembly is not None
    config = assembly.config
    assembly.pretraining_masks()  # report mistakes before a folder is made
    if found is not None:
        require_same_config(found, config)
    group = assembly.group
    with held_run(found, config, "pretrain", out, {"task": task}, group) as folder:
        with Interrupts() as interrupts:
            group.by_first(lambda: note_changes(folder, config))
            pretrainer = pretrainer_of(
                assembly,
                callbacks=[JsonLines(folder.metrics), *callbacks] if group.is_first else [],
                checkpoints=folder.checkpoints,
                between=interrupts.check,
            )
            if group.by_first(lambda: has_checkpoint(folder.checkpoints)):
                pretrainer.resume(folder.checkpoints)
            try:
                bound = pretrainer.run()
                group.together(interrupts.check)
            except Interrupted:
                return Run(folder)
        result = measure(assembly, pretrainer.model)
        found_values = {"held_out_bound": bound, **result.measures, "best": result.best}
        group.by_first(lambda: _write_base(folder, config, pretrainer.model, found_values))
    return Run(folder)


def _write_base(
    folder: RunFolder, config: RunConfig, model: Transformer, measures: Mapping[str, float | None]
) -> None:
    """Write a pretrained model, its task and its measures; the last file marks the run as finished."""
    save_model(model, folder.model)
    write_json(folder.model / "task.json", asdict(config.task))
    write_json(folder.summary, measures)
