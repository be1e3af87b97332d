"""What a run will do, worked out before it does anything: the answer to `--dry-run`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Literal

from dtm.capacity import preflight
from dtm.capacity.forecast import counted_seconds, format_duration, pretraining_seconds, training_seconds
from dtm.capacity.memory import parameters
from dtm.config import LanguageConfig, RunConfig
from dtm.engine import Decoder
from dtm.errors import require
from dtm.loop import annealing, build
from dtm.models.transformer import Transformer
from dtm.tasks.base import Task
from dtm.tasks.language import LanguageTask


def training_plan(config: RunConfig) -> dict[str, str]:
    """Builds every part of the run, so that whatever is wrong with the configuration is said here."""
    task = build.build_task(config)
    decoder = build.build_decoder(config.decoding)
    build.build_objective(config)
    build.build_interpolant(config, task)
    scorer = build.build_scorer(config, task)
    build.check_columns(scorer, task)
    device = build.build_device(config)
    shape = preflight.model_shape(config, task)
    preflight.check_fp8(config, shape, device)
    base = f"none yet, `dtm pretrain {config.recipe}` makes it"
    if preflight.has_base(config):
        base = str(build.base_folder(config))
    exact = "samples the model's own law" if decoder.is_exact else "approximates the model's law"
    if decoder.fp8:
        exact += ", with its projections in eight bits"
    memory, free = preflight.memory(config, task, shape), preflight.format_bytes(preflight.available(device))
    return {
        "task": f"{task.name}, completions of {task.completion_length} tokens",
        **({"prompts": task.spoken_counts()} if isinstance(task, LanguageTask) else {}),
        "reward": scorer.name,
        "base": f"{base} ({parameters(shape):,} parameters)",
        "device": f"{device}, {build.precision(config, device)}",
        **_loop(config),
        "decoding": f"{config.decoding.order} order; {exact}",
        **_audited(config, decoder),
        **{f"memory, {part}": preflight.format_bytes(size) for part, size in asdict(memory).items()},
        "memory, in all": f"{preflight.format_bytes(memory.total)} of {free} that are free",
        "time": forecast(config, "train"),
    }


def _audited(config: RunConfig, decoder: Decoder) -> dict[str, str]:
    """How much of decoding is checked, where there is something to check."""
    if not decoder.takes_shortcuts:
        return {}
    if config.audit.share == 0:
        return {"audit": "none: what decoding leaves out is not measured"}
    limits = f"at least {config.audit.agreement:.0%} of the tokens the same"
    if config.audit.shift is not None:
        limits += f", the mean reward at most {config.audit.shift:g} off"
    return {"audit": f"{config.audit.share:.0%} of the rollouts decoded again exactly; {limits}"}


def _loop(config: RunConfig) -> dict[str, str]:
    """Phases or iterations, and the rollouts of each."""
    tilt, replay, baseline = config.tilt, config.replay, config.objective.baseline
    last = annealing.final_tilt(config)
    drawn = f"{annealing.phase_prompts(config)} prompts × {replay.completions} completions"
    if baseline is not None:
        return {
            "objective": config.objective.name,
            "iterations": f"{_count(config, last, 1.0)}, each of {baseline.updates} updates",
            "rollouts per iteration": f"{drawn}, {config.completions_seen} of each in an update",
        }
    phases = "as ESS decides" if tilt.step == "auto" else _count(config, last, tilt.step)
    reach = "" if config.budget else f", from a = 0 to A = {tilt.final:g}"
    renewed = "none renewed within it"
    if replay.refresh_every < tilt.max_steps:
        renewed = f"{replay.refresh_fraction:.0%} renewed every {replay.refresh_every} steps"
    return {
        "phases": f"{phases}{reach}, at most {tilt.max_steps} steps each",
        "rollouts per phase": f"{drawn}, {renewed}",
    }


def _count(config: RunConfig, final: float, step: float) -> str:
    """How many, or what decides it."""
    if config.budget is not None:
        return f"as many as a budget of {config.budget} allows"
    return str(annealing.phases(final, step))


def pretraining_plan(config: RunConfig) -> dict[str, str]:
    """The same for `dtm pretrain`."""
    require(
        not isinstance(config.task, LanguageConfig),
        f"{config.recipe} starts from a model that has been pretrained",
    )
    task, settings = build.build_task(config), config.pretrain
    late = f", the last {settings.settle:.0%} masked in the decoder's blocks" if settings.settle else ""
    model, device = build.new_model(config.model, task, config.seed), build.build_device(config)
    return {
        "task": f"{task.name}, completions of {task.completion_length} tokens",
        "model": f"{sum(p.numel() for p in model.parameters()):,} parameters, from scratch",
        "device": f"{device}, {build.precision(config, device)}",
        "training": f"{settings.steps} steps of {settings.batch} sequences{late}, "
        f"learning rate {settings.lr:g}",
        "time": forecast(config, "pretrain"),
    }


def forecast(config: RunConfig, command: Literal["train", "pretrain"]) -> str:
    """How long it will take here."""
    task, device = build.build_task(config), build.build_device(config)
    if command == "train" and config.budget is not None:
        return f"until {config.budget} are spent on rollouts and updates; evaluations come on top"
    if isinstance(config.task, LanguageConfig):
        seconds = counted_seconds(config, task, preflight.model_shape(config, task), device)
    elif command == "train":
        seconds = training_seconds(config, task, _model(config, task).to(device), device)
    else:
        model = build.new_model(config.model, task, config.seed).to(device)
        seconds = pretraining_seconds(config, task, model, device)
    return f"about {format_duration(seconds)} on this machine"


def _model(config: RunConfig, task: Task) -> Transformer:
    """The base, or one of its shape where there is none yet."""
    if not preflight.has_base(config):
        return build.new_model(config.model, task, config.seed)
    return build.load_base(config, task)
