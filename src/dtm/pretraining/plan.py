"""The plan of a pretraining that `--dry-run` prints, and estimates of its time and of an adaptation's."""

from __future__ import annotations

import torch

from dtm.capacity.forecast import Timing, measured_seconds
from dtm.config.adapt import AdaptConfig
from dtm.loop.assembly import Assembly
from dtm.loop.plan import device_plan, duration
from dtm.methods import mdm_loss
from dtm.models.placement import Placement
from dtm.models.source import Source, as_diffusion, load_any
from dtm.pretraining.adaptation import adaptation_masks, require_attention
from dtm.pretraining.corpus import corpus_shares, tokens_per_row
from dtm.pretraining.instructions import ANSWERED, ASKED
from dtm.random import stream
from dtm.records import Sequences
from dtm.tasks.language import Chat


def pretraining_plan(assembly: Assembly) -> dict[str, str]:
    """Return the resolved plan of `dtm pretrain` as lines of text."""
    task, settings = assembly.task, assembly.config.pretrain
    assembly.pretraining_masks()  # refuses what cannot be pretrained
    late = f", the last {settings.settle:.0%} masked in the decoder's blocks" if settings.settle else ""
    size = sum(parameter.numel() for parameter in assembly.new_model().parameters())
    return {
        "task": f"{task.name}, completions of {task.completion_length} tokens",
        "model": f"{size:,} parameters, from scratch",
        **device_plan(assembly.placement),
        "training": f"{settings.steps} steps of {settings.batch} sequences{late}, "
        f"learning rate {settings.lr:g}",
        "time": pretraining_time_estimate(assembly),
    }


def pretraining_time_estimate(assembly: Assembly) -> str:
    """Estimate the time of `dtm pretrain` on this machine."""
    settings, (usual, late) = assembly.config.pretrain, assembly.pretraining_masks()
    model = assembly.new_model().to(assembly.placement.device)
    timing = Timing(assembly.task, model, assembly.placement)
    row = (1 - settings.settle) * timing.update(usual)
    if settings.settle:
        row += settings.settle * timing.update(late)
    return duration(settings.steps * settings.batch * row, assembly.placement)


def adaptation_plan(config: AdaptConfig) -> dict[str, str]:
    """Return the resolved plan of `dtm adapt` as lines of text; the source and all data are read for it."""
    source = load_any(config.source, mask_token=config.mask_token)
    require_attention(config, source.model)
    chat, settings = Chat(source.tokenizer), config.pretrain
    placement = Placement.resolve(config.device, config.precision, config.compile, nf4=False)
    size = sum(parameter.numel() for parameter in source.model.parameters())
    tokens = settings.steps * settings.batch * tokens_per_row(config, chat, source.eos_id)  # reads the data
    return {
        "source": f"{source.name}, {size:,} parameters",
        "corpus": ", ".join(f"{share:.0%} {name}" for name, share in corpus_shares(config.corpus).items()),
        **device_plan(placement),
        "training": f"{settings.steps} steps of {settings.batch} rows, about {tokens:,.0f} tokens",
        "time": adaptation_time_estimate(config, source),
    }


def adaptation_time_estimate(config: AdaptConfig, source: Source) -> str:
    """Estimate the longest time of `dtm adapt` here, from the time of one row and the number of tokens.

    A pass without a gradient, as the instructions need, counts a third. Measures at the end are not counted.
    """
    placement = Placement.resolve(config.device, config.precision, config.compile, nf4=False)
    model, masks = (
        as_diffusion(source.model, source.mask_id, config.attention_block).to(placement.device),
        adaptation_masks(config, source.eos_id)[0],
    )
    length, settings = config.corpus.lengths[0], config.pretrain
    row = torch.randint(source.model.vocab_size, (1, length), generator=stream(0, "forecast"))
    is_written = torch.arange(length).expand_as(row) >= length // 2 // config.block * config.block
    clean = Sequences(row, torch.ones_like(is_written), is_written).to(placement.device)
    states = masks.states(clean, source.mask_id, stream(0, "forecast", device=placement.device))

    def update() -> None:
        with placement.autocast():
            loss = mdm_loss(model, states)
        torch.autograd.backward(loss)

    update()  # warms up
    seconds = measured_seconds(update) / length
    rows = settings.steps * settings.batch * tokens_per_row(config, Chat(source.tokenizer), source.eos_id)
    written = config.corpus.instructions * (ASKED + ANSWERED) if config.corpus.general else 0
    return duration(seconds * (rows + written / 3), placement)
