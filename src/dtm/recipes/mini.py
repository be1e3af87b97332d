"""Sudoku and Countdown with small models from scratch: the benchmarks' puzzles in minutes."""

from __future__ import annotations

from dtm.config import (
    DecodingConfig,
    EvaluationConfig,
    MiniConfig,
    ModelConfig,
    OptimizerConfig,
    PretrainConfig,
    ReplayConfig,
    RunConfig,
    TiltConfig,
    configure_method,
)


def sudoku_mini() -> RunConfig:
    """4×4 Sudoku in characters, 4.8M parameters, pretrained to fill in 28 % of the empty cells."""
    return RunConfig(
        recipe="sudoku-mini",
        precision="auto",
        task=MiniConfig(kind="sudoku-mini", solved=0.28),
        model=ModelConfig(width=256, layers=6, heads=4, ffn=704),
        decoding=DecodingConfig(order="max-probability", block=8, batch=4096),
        method=configure_method("c-dtm"),
        tilt=TiltConfig(step=4.5, final=36.0, max_steps=60),
        replay=ReplayConfig(
            prompts=256, completions=16, refresh_every=30, refresh_fraction=0.5, priority=0.5
        ),
        optimizer=OptimizerConfig(lr=3e-4, batch=512, decay=0.5),
        evaluation=EvaluationConfig(prompts=256, completions=8),
        pretrain=PretrainConfig(steps=4000, batch=1024, lr=1.5e-3),
    )


def countdown_mini() -> RunConfig:
    """Countdown in characters, 7.8M parameters, pretrained to finish one answer in five."""
    return RunConfig(
        recipe="countdown-mini",
        precision="auto",
        task=MiniConfig(kind="countdown-mini", solved=0.2),
        model=ModelConfig(width=320, layers=6, heads=5, ffn=928),
        decoding=DecodingConfig(order="max-probability", block=8, batch=4096),
        method=configure_method("c-dtm"),
        tilt=TiltConfig(step=6.0, final=24.0, max_steps=100),
        replay=ReplayConfig(
            prompts=512, completions=16, refresh_every=50, refresh_fraction=0.5, priority=0.5
        ),
        optimizer=OptimizerConfig(lr=3e-4, batch=512, decay=0.5),
        evaluation=EvaluationConfig(prompts=256, completions=8),
        pretrain=PretrainConfig(steps=8000, batch=1024, lr=1.5e-3),
    )
