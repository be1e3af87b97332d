"""The maze study: a path from start to goal that keeps away from the centre."""

from __future__ import annotations

from dtm.training.config import (
    DecodingConfig,
    EvaluationConfig,
    MazeConfig,
    ModelConfig,
    OptimizerConfig,
    PretrainConfig,
    ReplayConfig,
    RunConfig,
    TiltConfig,
)


def maze_small() -> RunConfig:
    """15×15 maze, 0.5M parameters: the whole method in a few minutes on two CPU cores."""
    return RunConfig(
        recipe="maze-small",
        device="cpu",
        task=MazeConfig(size=15),
        model=ModelConfig(base="maze-small", width=128, layers=3, heads=4, ffn=256),
        decoding=DecodingConfig(certainty=0.999, batch=256),
        tilt=TiltConfig(step=2.5, final=10.0, max_steps=80),
        replay=ReplayConfig(prompts=64, completions=8, refresh_every=20),
        optimizer=OptimizerConfig(lr=3e-4, batch=128),
        evaluation=EvaluationConfig(prompts=64, completions=8),
        pretrain=PretrainConfig(steps=6000, batch=512, lr=3e-3),
    )
