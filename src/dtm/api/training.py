"""`dtm.train`: tune a base model towards a reward, and save the run in a folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from dtm.api.run import WEIGHTS, Run
from dtm.api.starting import held_run, require_same_inputs, start_run
from dtm.config import RunConfig
from dtm.errors import require
from dtm.loop.assembly import Assembly
from dtm.loop.fingerprint import run_fingerprint
from dtm.loop.trainer import Trainer
from dtm.methods.base import Method
from dtm.models.adapters import LoRA
from dtm.models.denoiser import Denoiser
from dtm.models.export import save_adapter
from dtm.models.storage import save_model
from dtm.models.transformer import Transformer
from dtm.models.weights import save_weights
from dtm.report.page.write import RunPage
from dtm.report.run import write_report
from dtm.report.trackers import Track, require_tracker
from dtm.runs.bases import find_base
from dtm.runs.checkpoint import has_checkpoint
from dtm.runs.events import Callback, JsonLines, SampleFiles
from dtm.runs.folder import RunFolder
from dtm.runs.interrupts import Interrupted, Interrupts
from dtm.runs.resume import Resume, note_changes, require_same_config
from dtm.tasks.base import Reward
from dtm.tasks.language.own import RowSource
from dtm.writing import write_json


def train(
    config: RunConfig | Assembly | str,
    *,
    method: Method | None = None,
    task: Any = None,
    model: Denoiser | None = None,
    reward: Reward | None = None,
    data: RowSource | None = None,
    out: str | Path | None = None,
    resume: Resume = False,
    callbacks: Sequence[Callback] = (),
    track: str | None = None,
) -> Run:
    """Tune a recipe's base model towards a reward, and save the run in a folder.

    Args:
        config: A recipe's name, a `RunConfig`, or an `Assembly` (`dtm.loop.assemble.assemble`).
        method: A `dtm.Method` in place of the configuration's.
        task: A `Task`, or an object with ``splits`` of text rows and a ``reward``.
        model: A `dtm.Denoiser` to start from, in place of ``model.base``; it is trained in place.
        reward: A function ``(prompts, completions, **columns) -> list[float | None]``; by default the task's.
        data: Rows of the task custom: a list of dicts with a "prompt" and columns for the reward, a file, or
            "hub:USER/NAME". A list is stored as JSON lines in the folder that the run's folder lies in.
        out: The run's folder; by default a new one under ``runs/``.
        resume: Continue the run in ``out`` (or the recipe's latest); a finished one is returned as it is.
            ``"auto"``: continue if there is such a run (without ``out``: an unfinished one), else start.
        callbacks: Called with every `Event` of the run, in the first process if there are several.
        track: "tensorboard", "wandb" or "trackio": send the same numbers and samples there. "wandb:TITLE"
            names the run.

    On SIGTERM or Ctrl-C the run saves itself and is returned unfinished.
    """
    require(
        isinstance(config, (str, RunConfig, Assembly)),
        f"config must be a recipe's name, a RunConfig or an Assembly, got {type(config).__name__}",
    )
    by_name = " (a name is a field: RunConfig.reward.function)" if isinstance(reward, str) else ""
    require(reward is None or callable(reward), f"reward must be a function, got {reward!r}{by_name}")
    if track is not None:
        require_tracker(track)
    given = {"method": method, "task": task, "model": model, "reward": reward}
    assembly, found = start_run(config, "train", out, resume, data, **given)
    if found is not None and found.is_finished:
        return Run(found, model, reward)
    assert assembly is not None
    config = assembly.run_config
    if found is not None:
        require_same_config(found, config)
    assembly.scorer.start()  # before this process takes memory and the GPU
    assembly.preflight()
    _ = assembly.base  # load it before there is a folder
    identity = run_fingerprint(assembly)
    if found is not None:
        identity = require_same_inputs(found, identity)
    group = assembly.group
    with held_run(found, config, "train", out, given, group) as folder, ExitStack() as stack:
        with Interrupts() as interrupts:
            page = RunPage(folder)
            writers = _writers(folder, config, page, track, stack) if group.is_first else []
            trainer = Trainer(
                assembly,
                callbacks=[*writers, *callbacks] if group.is_first else [],
                checkpoints=folder.checkpoints,
                between=interrupts.check,
            )
            if group.by_first(lambda: has_checkpoint(folder.checkpoints)):
                trainer.resume(folder.checkpoints)
            group.by_first(lambda: _note_start(folder, config, identity))  # only after every check has passed
            try:
                progress = trainer.run()
                group.together(interrupts.check)
            except Interrupted:
                group.by_first(page.write)
                return Run(folder, model, reward)
        tuned = trainer.policy.tuned(keep=group.is_first)
        group.by_first(lambda: _save(tuned, trainer.policy.lora, config, folder))
        group.by_first(lambda: write_report(folder, assembly, progress))
        group.by_first(page.write)
    return Run(folder, model, reward)


def _writers(
    folder: RunFolder, config: RunConfig, page: RunPage, track: str | None, stack: ExitStack
) -> list[Callback]:
    """Return the writers of a run's events: its files, its page, and a tracker."""
    writers: list[Callback] = [JsonLines(folder.metrics), SampleFiles(folder.samples), page]
    if track is not None:
        tracker = Track(track, folder, config)
        stack.callback(tracker.close)
        writers.append(tracker)
    return writers


def _note_start(folder: RunFolder, config: RunConfig, identity: Mapping[str, Any]) -> None:
    """Record the configuration and inputs with which a run starts or continues."""
    note_changes(folder, config)
    write_json(folder.fingerprint, identity)


def _save(model: Denoiser, lora: LoRA | None, config: RunConfig, folder: RunFolder) -> None:
    """Write the finished model: all of its weights, or its adapter as a PEFT folder."""
    if not isinstance(model, Transformer):
        save_weights(folder.model / WEIGHTS, model.state_dict())
    elif lora is None:
        save_model(model, folder.model)
    else:
        base = str(config.model.base)
        if Path(base).is_dir():  # it may be a run's folder, which has the model in a subfolder
            base = str(find_base(config))
        save_adapter(model, lora, folder.model, base)
