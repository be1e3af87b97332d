"""The maze study: a path from start to goal that keeps away from the centre."""

from __future__ import annotations

from dtm.training.config import (
    DecodingConfig,
    EvaluationConfig,
    MazeConfig,
    ModelConfig,
    ObjectiveConfig,
    OptimizerConfig,
    PretrainConfig,
    ReplayConfig,
    RunConfig,
    TiltConfig,
)


def maze_small() -> RunConfig:
    """15×15 maze, 0.55M parameters: the whole method in a few minutes on two CPU cores.

    Few, well absorbed phases on fresh rollouts: small buffers and many phases cost validity
    (docs/decisions.md). Blocks of 8 in max-probability order make the base far more consistent than
    any-order decoding does.
    """
    return RunConfig(
        recipe="maze-small",
        device="cpu",
        task=MazeConfig(size=15),
        model=ModelConfig(base="maze-small", width=128, layers=3, heads=4, ffn=256),
        decoding=DecodingConfig(order="max-probability", block=8, certainty=0.999, batch=320),
        objective=ObjectiveConfig(after_end=False),
        tilt=TiltConfig(step=5.0, final=10.0, max_steps=125),
        replay=ReplayConfig(prompts=160, completions=8, refresh_every=25, refresh_fraction=0.5, priority=0.5),
        optimizer=OptimizerConfig(lr=3e-4, batch=192, decay=0.5),
        evaluation=EvaluationConfig(prompts=128, completions=8),
        pretrain=PretrainConfig(steps=6000, batch=512, lr=3e-3),
    )
