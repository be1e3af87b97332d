"""SmolLM2-135M, adapted by `dtm adapt smollm2`, on Countdown, Sudoku, GSM8K, and own rows.

Prompts, rewards and protocol are the paper's, as in the LLaDA recipes. Buffers are larger and rates higher,
because the model is small and rollouts are cheap.
"""

from __future__ import annotations

from dataclasses import replace

from dtm.config import (
    AdapterConfig,
    AuditConfig,
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


def _smollm(
    kind: str, length: int, tilt: TiltConfig, replay: ReplayConfig, batch: int, micro: int
) -> RunConfig:
    """The common settings: LoRA on all projections, blocks of 32, short phases with fresh prompts in each.

    The block cache is an approximation for full attention. It does not change the accuracy of the base; two
    tokens per step would. Phases are too short to end by the absorbed share. Micro-batches have 14,000 to
    22,000 tokens, which keeps a large GPU busy and leaves memory for other runs.
    """
    return RunConfig(
        recipe=f"smollm-{kind}",
        precision="auto",
        task=LanguageConfig(kind=kind, completion_length=length),  # type: ignore[arg-type]
        model=ModelConfig(base="smollm2"),
        adapter=AdapterConfig(rank=64, alpha=64.0),
        decoding=DecodingConfig(
            order="max-probability", block=32, cache="block", certainty=0.99, until_end=True, batch=512
        ),
        audit=AuditConfig(share=0.01),
        method=configure_method("c-dtm", control_variate="one", after_end=False),
        tilt=tilt,
        replay=replay,
        optimizer=OptimizerConfig(lr=1e-3, batch=batch, micro_batch=micro, decay=0.4),
        evaluation=EvaluationConfig(prompts=256, completions=1, temperature=0.0),
    )


def smollm_countdown() -> RunConfig:
    """SmolLM2-135M on Countdown: h = 3, 30 steps of 256 per phase, eight completions of 512 prompts.

    Late in a run most prompts are always right or always wrong, and few rollouts have a gradient. With many
    prompts and few steps, these rollouts are not repeated often.
    """
    return _smollm(
        "countdown",
        96,
        TiltConfig(step=3.0, final=12.0, max_steps=30, absorbed="never"),
        ReplayConfig(prompts=512, completions=8, refresh_every=30, priority=0.9),
        256,
        64,
    )


def smollm_sudoku() -> RunConfig:
    """SmolLM2-135M on 4×4 Sudoku: h = 5, 30 steps of 64 per phase, eight completions of 256 puzzles."""
    config = _smollm(
        "sudoku",
        64,
        TiltConfig(step=5.0, final=20.0, max_steps=30, absorbed="never"),
        ReplayConfig(prompts=256, completions=8, refresh_every=30, priority=0.9),
        64,
        16,
    )
    return replace(
        config,
        task=replace(config.task, prompt_length=1500),  # type: ignore[call-arg]
        decoding=replace(config.decoding, batch=256),
    )


def smollm_gsm8k() -> RunConfig:
    """SmolLM2-135M on GSM8K: h = 1.5, 20 steps of 192 per phase, eight completions of 512 questions.

    Two tokens per step, as in the protocol, because rollouts of long texts take most of the time. In long
    texts one different token changes all later ones, so the audit compares only rewards. With h = 3 the 1 %
    of right answers had four fifths of the weight, and the phases learnt their texts. These settings are not
    measured yet.
    """
    config = _smollm(
        "gsm8k",
        256,
        TiltConfig(step=1.5, final=6.0, max_steps=20, absorbed="never"),
        ReplayConfig(prompts=512, completions=8, refresh_every=20, priority=0.9),
        192,
        32,
    )
    return replace(
        config,
        decoding=replace(config.decoding, batch=256, tokens_per_step=2),
        audit=AuditConfig(share=0.01, agreement=0.0, shift=0.1),
    )


def smollm_custom() -> RunConfig:
    """SmolLM2-135M on your own rows and reward: --data rows.jsonl --reward my_rewards.py:reward.

    The settings of Countdown, with an h for rewards between 0 and 1. Evaluations draw answers like rollouts,
    at temperature 1, so that both show the same change.
    """
    config = _smollm(
        "custom",
        128,
        TiltConfig(step=2.0, final=8.0, max_steps=30, absorbed="never"),
        ReplayConfig(prompts=512, completions=8, refresh_every=30, priority=0.9),
        256,
        64,
    )
    return replace(config, evaluation=EvaluationConfig(prompts=256, completions=1))
