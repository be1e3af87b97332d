"""`dtm adapt`: turn an autoregressive model into a masked diffusion model, saved in a public layout."""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dtm.config import EvaluationConfig, LanguageConfig
from dtm.config.adapt import AdaptConfig, run_name
from dtm.config.serialise import load_yaml, obstacles
from dtm.distributed import ALONE, Group, current
from dtm.engine import Decoder, LocalEngine
from dtm.engine.collect import Collector
from dtm.engine.orders import ORDERS
from dtm.errors import ConfigError, require
from dtm.evaluation.cost import HELD_OUT_INSTRUCTIONS
from dtm.evaluation.evaluate import evaluate
from dtm.masking import CountMasking, EveryBlock, MaskCount
from dtm.models.placement import Placement
from dtm.models.source import Source, as_diffusion, load_any
from dtm.models.storage import save_hub
from dtm.models.transformer import Transformer
from dtm.pretraining.corpus import corpus_parts, corpus_shares, mixture_of, prefetched
from dtm.pretraining.instructions import INSTRUCTIONS, held_out_instructions
from dtm.pretraining.pretrainer import Pretrainer
from dtm.runs.checkpoint import has_checkpoint
from dtm.runs.events import Callback, JsonLines
from dtm.runs.folder import RunFolder
from dtm.runs.interrupts import Interrupted, Interrupts
from dtm.runs.resume import Resume, find_run, held, with_remedy
from dtm.tasks.corpus.general import save_rows
from dtm.tasks.language.build import language_task
from dtm.tasks.language.tokenizer import Chat
from dtm.tasks.rewards import Scorer
from dtm.writing import write_json

MEASURED = {"countdown": 96, "sudoku": 64, "gsm8k": 256}
"""Tasks that are measured if the corpus has them, and the length of their completions."""


def adapt(
    config: AdaptConfig | str,
    *,
    out: str | Path | None = None,
    resume: Resume = False,
    callbacks: Sequence[Callback] = (),
) -> RunFolder:
    """Make a masked diffusion model from an autoregressive one, and save it in a run's folder.

    Args:
        config: The name or path of a source, or all settings.
        out: The run's folder; by default a new one under ``runs/``.
        resume: Continue the run in ``out``, or the latest of this source; ``"auto"``: if there is one.
        callbacks: Called with every `Event`.

    On SIGTERM or Ctrl-C the run saves itself and is returned unfinished.
    """
    begin = time.perf_counter()
    config = AdaptConfig(source=config, recipe=run_name(config)) if isinstance(config, str) else config
    found = find_run(config.recipe, "adapt", out, resume)
    if found is not None:
        require_same(found, config)
        if found.is_finished:
            return found
    corpus_shares(config.corpus)  # report mistakes before any work
    group = current()
    placement = Placement.resolve(config.device, config.precision, config.compile, nf4=False)
    source = load_any(config.source, mask_token=config.mask_token)
    require_attention(config, source.model)
    with (
        held(found, config, "adapt", out, group) as folder,
        with_remedy(folder, f"dtm adapt {config.source} --resume --out {shlex.quote(str(folder.path))}"),
    ):
        with Interrupts() as interrupts:
            try:
                adapter = new_adapter(
                    config,
                    source,
                    placement,
                    folder.path,
                    callbacks=[JsonLines(folder.metrics), *callbacks] if group.is_first else [],
                    checkpoints=folder.checkpoints,
                    between=interrupts.check,
                    group=group,
                )
                if group.by_first(lambda: has_checkpoint(folder.checkpoints)):
                    adapter.resume(folder.checkpoints)
                adapter.prepare()
                prepared = (time.perf_counter() - begin) / 60
                bound = adapter.run()
                adapter.save()
                group.together(interrupts.check)
            except Interrupted:
                return folder
        _finish(config, source, adapter, {"held_out_bound": bound, "preparation_minutes": prepared}, folder)
    return folder


def _finish(
    config: AdaptConfig, source: Source, adapter: Pretrainer, found: dict[str, float], folder: RunFolder
) -> None:
    """Write the model, its origin and its measures."""
    adapter.group.by_first(lambda: _write_model(source, adapter.model, folder, adapter.placement.dtype))
    if measured_tasks(config):
        adapter.tell("measuring", prompts=config.measured, tasks=measured_tasks(config))
    measures = measure_tasks(config, adapter.model, folder.model, adapter.placement, adapter.group)
    spent = {
        "minutes": adapter.seconds / 60,
        "tokens": adapter.tokens,
        "tokens_per_second": adapter.tokens / adapter.seconds,
    }
    summary = {**found, **spent, **measures}
    adapter.group.by_first(lambda: write_json(folder.summary, summary))


def _write_model(source: Source, model: Transformer, folder: RunFolder, dtype: torch.dtype) -> None:
    """Write the model in the precision of its training and its measures."""
    if not folder.model.exists():  # it exists if the run was stopped during the measures
        save_hub(model, source.tokenizer, folder.model, dtype)
    kept_out = held_out_instructions(folder.path) if (folder.path / INSTRUCTIONS).is_file() else []
    if kept_out:
        save_rows(kept_out, folder.model / HELD_OUT_INSTRUCTIONS)
    write_json(folder.model / "source.json", {"name": source.name, "sha256": source.sha256})


def require_attention(config: AdaptConfig, model: Transformer) -> None:
    """Raise an error if the attention of a masked diffusion model would change without a flag."""
    stored = model.attention_block
    if stored is not None and stored > 1:
        require(
            config.attention == "block" and config.block == stored,
            f"{config.source} has block-causal attention: pass --attention block --block {stored}",
        )


def require_same(folder: RunFolder, config: AdaptConfig) -> None:
    """Raise an error if an adaptation is continued with other settings."""
    start = AdaptConfig()  # a file without mask_skew is of a release that had none
    start = replace(start, pretrain=replace(start.pretrain, mask_skew=1.0))
    found = "\n".join(obstacles(load_yaml(folder.config, start), config))
    if found:
        raise ConfigError(
            f"{folder.path} was started with other settings:\n{found}\nStart a new run with --out"
        )


def new_adapter(
    config: AdaptConfig,
    source: Source,
    placement: Placement,
    folder: Path,
    callbacks: Sequence[Callback] = (),
    checkpoints: Path | None = None,
    between: Callable[[], None] = lambda: None,
    group: Group = ALONE,
) -> Pretrainer:
    """Return the training that adapts a source, after writing the source's instructions to the folder."""
    chat = Chat(source.tokenizer)
    training, kept_out = (
        mixture_of(parts, config, chat, source.eos_id)
        for parts in corpus_parts(config, source.model, chat, placement, folder, between, group)
    )
    return Pretrainer(
        as_diffusion(source.model, source.mask_id, config.attention_block),
        prefetched(training, kept_out, config),
        adaptation_masks(config, source.eos_id),
        config.pretrain,
        placement,
        seed=config.seed,
        callbacks=callbacks,
        checkpoints=checkpoints,
        saving=config.checkpoint,
        between=between,
        group=group,
    )


def adaptation_masks(config: AdaptConfig, eos_id: int) -> tuple[CountMasking, CountMasking]:
    """Return the masks of most steps, and those of the last steps.

    With full attention: in any order, then in the decoder's blocks. With block-causal attention: in every
    block at once.
    """
    end_id, skew = None if config.pretrain.after_end else eos_id, config.pretrain.mask_skew
    if config.attention == "block":
        return EveryBlock(config.block, skew=skew), EveryBlock(config.block, end_id, skew)
    return MaskCount(skew=skew), MaskCount(config.block, end_id, skew=skew)


def measured_tasks(config: AdaptConfig) -> list[str]:
    """Return the tasks of the corpus on which the model is measured."""
    shares = corpus_shares(config.corpus)
    return [kind for kind in MEASURED if config.measured and kind in shares]


def measure_tasks(
    config: AdaptConfig, model: Transformer, folder: Path, placement: Placement, group: Group = ALONE
) -> dict[str, dict[str, float]]:
    """Measure accuracy on validation prompts of the corpus's tasks, at temperature 1, one token per step.

    Decoding uses a cache, like the rollouts of the recipes: exact decoding of long texts would take a minute.
    """
    measures: dict[str, dict[str, float]] = {}
    decoder = Decoder(
        order=ORDERS["max-probability"](),
        block=config.block,
        cache="prefix" if config.attention == "block" else "block",
        until_end=True,
    )
    for kind in measured_tasks(config):
        settings: Any = {"kind": kind, "data_dir": config.corpus.data_dir, "prompt_length": 8192}
        task = language_task(LanguageConfig(**settings, completion_length=MEASURED[kind]), folder)
        engine = LocalEngine(decoder, MEASURED[kind], config.measured)
        engine.load(model.eval())
        collector = Collector(task, Scorer(task.reward, kind, in_process=True), engine, group)
        with placement.autocast():
            setting = EvaluationConfig(prompts=config.measured, completions=1)
            measures[kind] = dict(evaluate(collector, setting, placement.device).measures)
    return measures
