"""LLaDA-8B-Instruct on Sudoku, Countdown, GSM8K and MATH500 with the paper's hyper-parameters.

Buffers and batches are the paper's for one GPU of its eight. The paper does not say where annealing ends:
these stop at a tilt of 100 or when the validation reward has not risen for three phases.
"""

from __future__ import annotations

from dataclasses import replace

from dtm.config import (
    AdapterConfig,
    DecodingConfig,
    EvaluationConfig,
    LanguageConfig,
    ModelConfig,
    OptimizerConfig,
    ReplayConfig,
    RunConfig,
    TiltConfig,
    configure_method,
)

HUB = "GSAI-ML/LLaDA-8B-Instruct"


def _llada(
    kind: str, step: float, steps: int, lr: float, batch: int, clip: float, replay: ReplayConfig
) -> RunConfig:
    """The common settings: 4-bit base, LoRA 128/64 on the published four, SAR blocks of 32.

    Rollouts are drawn at temperature 1 and evaluations at 0, as in the paper; Sudoku's rollouts too at 0.
    """
    return RunConfig(
        recipe=f"llada-{kind}",
        precision="auto",
        task=LanguageConfig(kind=kind),  # type: ignore[arg-type]
        model=ModelConfig(base=HUB, nf4=True, recompute="auto"),
        adapter=AdapterConfig(rank=128, alpha=64.0, targets="published"),
        decoding=DecodingConfig(
            order="sampled-confidence",
            block=32,
            tokens_per_step=2,
            temperature=0.0 if kind == "sudoku" else 1.0,
            batch=32,
        ),
        method=configure_method("c-dtm", control_variate="one", guard=False, prompt_baseline=False),
        tilt=TiltConfig(step=step, final=100.0, max_steps=steps, absorbed="never"),
        replay=replay,
        optimizer=OptimizerConfig(
            lr=lr, batch=batch, micro_batch=12, weight_decay=0.1, clip_norm=clip, warmup=0.05, decay=0.1
        ),
        evaluation=EvaluationConfig(prompts=64, completions=1, temperature=0.0, patience=3),
    )


def _buffer(prompts: int, completions: int, every: int) -> ReplayConfig:
    return ReplayConfig(
        prompts=prompts, completions=completions, refresh_every=every, refresh_fraction=0.25, priority=0.0
    )


def llada_sudoku() -> RunConfig:
    """LLaDA-8B on 4×4 Sudoku: h = 5, 256 steps of 64 per phase, one completion of each of 80 puzzles."""
    config = _llada("sudoku", 5.0, 256, 3e-6, 64, 2.0, _buffer(80, 1, 32))
    return replace(config, task=LanguageConfig(kind="sudoku", prompt_length=1500))


def llada_countdown() -> RunConfig:
    """LLaDA-8B on Countdown: h = 6, 800 steps of 96 per phase, six completions of each of 80 items."""
    return _llada("countdown", 6.0, 800, 4e-6, 96, 2.0, _buffer(80, 6, 25))


def llada_gsm8k() -> RunConfig:
    """LLaDA-8B on GSM8K: h = 1, 800 steps of 96 per phase, six completions of each of 80 questions."""
    return _llada("gsm8k", 1.0, 800, 5e-5, 96, 2.0, _buffer(80, 6, 50))


def llada_math500() -> RunConfig:
    """LLaDA-8B on MATH: h = 1, 400 steps of 72 per phase, eight completions of each of 60 problems."""
    return _llada("math500", 1.0, 400, 1e-5, 72, 1.0, _buffer(60, 8, 50))


def llada_sudoku_released() -> RunConfig:
    """LLaDA-8B on Sudoku as released: gradient clip 1 instead of 2, dropout 0.05, decay to 1/3."""
    config = llada_sudoku()
    return replace(
        config,
        recipe="llada-sudoku-released",
        adapter=replace(config.adapter, dropout=0.05),
        optimizer=replace(config.optimizer, clip_norm=1.0, floor=1 / 3),
    )


def llada_countdown_released() -> RunConfig:
    """LLaDA-8B on Countdown as released: 40 items, 1200 steps, EMA 0.95, dropout 0.05, decay to 1/2."""
    config = llada_countdown()
    return replace(
        config,
        recipe="llada-countdown-released",
        task=LanguageConfig(kind="countdown", reward="released"),
        adapter=replace(config.adapter, dropout=0.05),
        tilt=replace(config.tilt, max_steps=1200),
        replay=_buffer(40, 6, 25),
        optimizer=replace(config.optimizer, ema=0.95, floor=0.5),
    )


def llada_custom() -> RunConfig:
    """LLaDA-8B on your own rows and reward: --data my.jsonl --reward my_module:my_reward."""
    config = _llada("custom", 2.5, 400, 1e-5, 96, 1.0, _buffer(64, 8, 25))
    return replace(
        config,
        method=configure_method("c-dtm"),
        adapter=AdapterConfig(rank=128, alpha=64.0),
        tilt=replace(config.tilt, absorbed=0.9),
        replay=replace(config.replay, priority=0.5),
    )
