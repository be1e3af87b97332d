"""The maze study: a path from start to goal that keeps away from the centre."""

from __future__ import annotations

from dataclasses import replace

from dtm.config import (
    AuditConfig,
    CheckpointConfig,
    DecodingConfig,
    EvaluationConfig,
    MazeConfig,
    ModelConfig,
    OptimizerConfig,
    PretrainConfig,
    ReplayConfig,
    RunConfig,
    TiltConfig,
    configure_method,
)


def maze_small() -> RunConfig:
    """15×15 maze, 0.55M parameters: the whole method in a few minutes on two CPU cores.

    Few, well absorbed phases on new rollouts: small buffers and many phases reduce validity
    (docs/decisions.md). Blocks of 8 in max-probability order make the base far more consistent than
    any-order decoding does.
    """
    return RunConfig(
        recipe="maze-small",
        device="cpu",
        task=MazeConfig(size=15),
        model=ModelConfig(base="maze-small", width=128, layers=3, heads=4, ffn=256),
        decoding=DecodingConfig(order="max-probability", block=8, certainty=0.999, batch=320),
        audit=AuditConfig(share=0.0),  # the effect of certainty 0.999 is bounded
        method=configure_method("c-dtm", after_end=False),
        tilt=TiltConfig(step=10 / 3, final=10.0, max_steps=120),
        replay=ReplayConfig(
            prompts=160, completions=8, refresh_every=40, refresh_fraction=0.5, held_out=0.4, priority=0.5
        ),
        optimizer=OptimizerConfig(lr=3e-4, batch=192, decay=0.8),
        evaluation=EvaluationConfig(prompts=128, completions=8),
        pretrain=PretrainConfig(steps=6000, batch=512, lr=3e-3, after_end=False),
    )


def maze() -> RunConfig:
    """41×41 maze, 8.9M parameters: the paper's maze study on one GPU, in small steps on fresh rollouts."""
    return RunConfig(
        recipe="maze",
        precision="auto",
        task=MazeConfig(size=41, completion_length=80),
        model=ModelConfig(width=320, layers=6, heads=5, ffn=928),
        decoding=DecodingConfig(order="max-probability", block=8, certainty=0.9999, batch=2560),
        audit=AuditConfig(share=0.0),
        method=configure_method("c-dtm", after_end=False),
        tilt=TiltConfig(step=2.5, final=32.5, max_steps=270),
        replay=ReplayConfig(prompts=2048, completions=8, refresh_every=270, priority=0.5),
        optimizer=OptimizerConfig(lr=1e-4, batch=768, decay=0.8),
        evaluation=EvaluationConfig(prompts=256, completions=4),
        checkpoint=CheckpointConfig(every=500),  # a phase takes seconds, and is saved at its end
        pretrain=PretrainConfig(steps=16_000, batch=512, lr=2e-3, settle=0.3, after_end=False),
    )


def maze_paper() -> RunConfig:
    """41×41 maze as in the paper: a weak any-order base, random order, c = 1 without the guard, h = 2.5."""
    best = maze()
    return replace(
        best,
        recipe="maze-paper",
        decoding=DecodingConfig(order="uniform", batch=2560),
        method=configure_method("c-dtm", control_variate="one", guard=False, prompt_baseline=False),
        pretrain=PretrainConfig(steps=1930, batch=1024, lr=2e-3),
        tilt=TiltConfig(step=2.5, final=15.0, max_steps=200),
        replay=ReplayConfig(
            prompts=320, completions=8, refresh_fraction=1.0, refresh_every=100, priority=0.0
        ),
        optimizer=OptimizerConfig(lr=5e-5, batch=768, decay=0.3, ema=0.98),
    )
