"""What a run will do, worked out before it does anything: the answer to `--dry-run`."""

from __future__ import annotations

import math

from dtm.training import build
from dtm.training.config import RunConfig
from dtm.training.folder import RunFolder


def training_plan(config: RunConfig) -> dict[str, str]:
    """Builds every part of the run, so that whatever is wrong with the configuration is said here."""
    task = build.build_task(config)
    decoder = build.build_decoder(config.decoding)
    build.build_objective(config)
    build.build_interpolant(config, task)
    scorer = build.build_scorer(config, task)
    device = build.build_device(config)
    base = f"none yet: `dtm pretrain {config.recipe}` makes it"
    if config.model.base is not None or RunFolder.pretrained(config.recipe) is not None:
        model = build.load_base(config, task)
        base = f"{build.base_folder(config)} ({sum(p.numel() for p in model.parameters()):,} parameters)"
    tilt, replay = config.tilt, config.replay
    phases = "as ESS decides" if tilt.step == "auto" else str(math.ceil(tilt.final / tilt.step - 1e-9))
    exact = "samples the model's own law" if decoder.is_exact else "approximates the model's law"
    return {
        "task": f"{task.name}, completions of {task.completion_length} tokens",
        "reward": scorer.name,
        "base": base,
        "device": f"{device}, {config.precision}",
        "phases": f"{phases}, from a = 0 to A = {tilt.final:g}, at most {tilt.max_steps} steps each",
        "rollouts per phase": f"{replay.prompts} prompts × {replay.completions} completions, "
        f"{replay.refresh_fraction:.0%} renewed every {replay.refresh_every} steps",
        "decoding": f"{config.decoding.order} order; {exact}",
    }


def pretraining_plan(config: RunConfig) -> dict[str, str]:
    """The same for `dtm pretrain`."""
    task, settings = build.build_task(config), config.pretrain
    model = build.new_model(config.model, task, config.seed)
    return {
        "task": f"{task.name}, completions of {task.completion_length} tokens",
        "model": f"{sum(p.numel() for p in model.parameters()):,} parameters, from scratch",
        "device": f"{build.build_device(config)}, {config.precision}",
        "training": f"{settings.steps} steps of {settings.batch} sequences, learning rate {settings.lr:g}",
    }
