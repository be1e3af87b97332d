"""Evaluate a model on a task, steer it by the task's reward, and measure what tuning it cost."""

from __future__ import annotations

from dataclasses import replace

from dtm.config import EvaluationConfig
from dtm.engine import Decoder
from dtm.engine.collect import Collector
from dtm.evaluation.cost import bound, divergence, instructions
from dtm.evaluation.evaluate import Evaluation, evaluate, evaluation_decoder, held_out
from dtm.loop.assembly import Assembly
from dtm.masking import MaskCount, in_blocks
from dtm.models.denoiser import Denoiser
from dtm.models.merging import for_decoding
from dtm.models.transformer import Transformer
from dtm.random import derived_seed
from dtm.records import Prompts
from dtm.steering import Steering
from dtm.steering.task import Answers, steer_task
from dtm.tasks.language import LanguageTask


def measure(assembly: Assembly, model: Denoiser, evaluation: EvaluationConfig | None = None) -> Evaluation:
    """Evaluate a model on the task and with the decoder of an assembly."""
    placement, setting = assembly.placement, evaluation or assembly.config.evaluation
    engine = assembly.engine(evaluation_decoder(assembly.decoder, setting))
    engine.load(for_decoding(model.to(placement.device).eval(), engine.decoder.fp8))
    with placement.autocast():
        collector = Collector(assembly.task, assembly.scorer, engine, assembly.group)
        return evaluate(collector, setting, placement.device)


def steer(
    assembly: Assembly,
    model: Denoiser,
    method: Steering,
    prompts: Prompts,
    seed: int,
    decoder: Decoder | None = None,
    target: Denoiser | None = None,
) -> Answers:
    """Steer a model on prompts of an assembly's task, with its reward and, by default, its decoder."""
    placement, decoder = assembly.placement, decoder or assembly.decoder
    decoder = replace(decoder, refresh=1)  # rows stop at the end of each block

    def ready(given: Denoiser) -> Denoiser:
        return for_decoding(given.to(placement.device).eval(), decoder.fp8)

    with placement.autocast():
        return steer_task(
            ready(model),
            assembly.task,
            assembly.scorer,
            prompts.to(placement.device),
            method,
            decoder,
            seed=seed,
            batch=assembly.config.decoding.batch,
            target=None if target is None else ready(target),
        )


def tuning_cost(assembly: Assembly, tuned: Transformer, evaluation: EvaluationConfig) -> dict[str, float]:
    """Return the cost of tuning a language model: KL to its base, and both bounds on held-out instructions.

    In nats per sequence. The completions are drawn from the tuned model as in its rollouts.
    """
    placement, task, base = assembly.placement, assembly.task, assembly.base
    tuned, base = tuned.to(placement.device).eval(), base.to(placement.device).eval()
    collector = assembly.collector()
    collector.engine.load(for_decoding(tuned, assembly.decoder.fp8))
    prompts = held_out(task, evaluation).to(placement.device)
    masks, costs = in_blocks(MaskCount(assembly.decoder.block), tuned.attention_block), dict[str, float]()
    with placement.autocast():
        drawn = collector.collect(prompts, 1, 0.0, derived_seed(0, "cost")).rollouts
        costs["KL to base"] = divergence(tuned, base, drawn, masks)
        if isinstance(task, LanguageTask) and assembly.base_folder is not None:
            general = instructions(assembly.base_folder, task.chat, task.eos_id, tuned.attention_block)
            if general is not None:
                general = general.to(placement.device)
                costs["bound on instructions, base"] = bound(base, general, masks)
                costs["bound on instructions, tuned"] = bound(tuned, general, masks)
    return costs
