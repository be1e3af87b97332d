"""The plan of a run that `--dry-run` prints, and its estimate of time."""

from __future__ import annotations

from dataclasses import asdict

import torch

from dtm.capacity.forecast import COMPILATION, Timing, counted_seconds, format_duration
from dtm.capacity.memory import active_parameters, parameters
from dtm.capacity.preflight import available, format_bytes
from dtm.loop.assembly import Assembly
from dtm.models.placement import Placement
from dtm.tasks.language import LanguageTask


def training_plan(assembly: Assembly) -> dict[str, str]:
    """Return the resolved plan of `dtm train` as lines of text."""
    config, task, decoder = assembly.config, assembly.task, assembly.decoder
    law = "samples the model's own law"
    if not decoder.is_exact:
        law = f"approximates the model's law ({', '.join(decoder.approximations)})"
    return {
        "task": f"{task.name}, completions of {task.completion_length} tokens",
        **({"prompts": task.describe_counts()} if isinstance(task, LanguageTask) else {}),
        "reward": assembly.scorer.name,
        "base": _base(assembly),
        **attention_plan(assembly),
        **device_plan(assembly.placement),
        **_processes(assembly),
        "method": config.method.name,
        **assembly.loop.describe(),
        "decoding": f"{config.decoding.order} order; {law}",
        **cache_plan(assembly),
        **_audit(assembly),
        **_memory(assembly),
        "time": time_estimate(assembly),
    }


def device_plan(placement: Placement) -> dict[str, str]:
    """Describe the device: its threads on a CPU, and the time of compilation, if any."""
    threads = {"threads": str(torch.get_num_threads())} if placement.device.type == "cpu" else {}
    compilation = {
        "compilation": f"about {format_duration(COMPILATION)} once, part of the time below; less where "
        "torch's cache has the kernels of an earlier run"
    }
    return {"device": str(placement), **threads, **(compilation if placement.compiles else {})}


def duration(seconds: float, placement: Placement) -> str:
    """Format an estimate of time, with the seconds of compilation."""
    if not placement.compiles:
        return f"about {format_duration(seconds)} on this machine"
    return f"about {format_duration(seconds + COMPILATION)} on this machine, with compilation"


def _base(assembly: Assembly) -> str:
    where = f"none yet, `dtm pretrain {assembly.config.recipe}` makes it"
    if assembly.has_base:
        where = str(assembly.base_folder or assembly.config.model.base or "given as an object")
    shape = assembly.shape
    if shape is None:
        return where
    active = "" if shape.experts is None else f", {active_parameters(shape):,} active"
    return f"{where} ({parameters(shape):,} parameters{active})"


def _processes(assembly: Assembly) -> dict[str, str]:
    if assembly.group.size == 1:
        return {}
    kept, size = "all weights", assembly.group.size
    if assembly.sharded:
        kept = f"1/{assembly.shards} of the weights, gathered block by block"
        if assembly.shards < size:
            kept += f"; {size // assembly.shards} replicas of {assembly.shards} processes"
    return {"processes": f"{size}, each keeps {kept}"}


def _memory(assembly: Assembly) -> dict[str, str]:
    if assembly.memory is None:
        return {}
    parts = {f"memory, {part}": format_bytes(size) for part, size in asdict(assembly.memory).items()}
    free = format_bytes(available(assembly.placement.device))
    each = " in each process" if assembly.group.size > 1 else ""
    return {**parts, "memory, in all": f"{format_bytes(assembly.memory.total)}{each}, {free} are free"}


def attention_plan(assembly: Assembly) -> dict[str, str]:
    """Describe the attention of the base: full, or causal between blocks."""
    block = assembly.attention_block
    if block is None:
        return {} if assembly.shape is None else {"attention": "full"}
    return {"attention": f"blocks of {block}, causal between them" if block > 1 else "causal"}


def cache_plan(assembly: Assembly) -> dict[str, str]:
    """Describe the exact cache of a block-causal base; nothing for full attention, which has none."""
    if assembly.attention_block is None or assembly.shape is None:
        return {}
    if assembly.decoder.cache != "prefix":
        used = assembly.decoder.cache
        return {"cache": f"{used}; --decoding.cache prefix is exact for this attention, and faster"}
    audit = "" if assembly.decoder.shortcuts else ", so it needs no audit"
    others = "" if assembly.decoder.is_exact else "; what approximates the law is named under decoding"
    return {"cache": f"prefix: exact, since finished blocks never change{audit}{others}"}


def _audit(assembly: Assembly) -> dict[str, str]:
    """Describe the audit of decoding, if the decoder takes shortcuts."""
    limits = assembly.config.audit
    if not assembly.decoder.shortcuts:
        return {}
    if limits.share == 0:
        return {"audit": "none: the error of decoding's approximations is not measured"}
    rule = f"at least {limits.agreement:.0%} of the tokens equal"
    if limits.shift is not None:
        rule += f", the mean reward at most {limits.shift:g} off"
    return {"audit": f"{limits.share:.0%} of the rollouts decoded again exactly; {rule}"}


def time_estimate(assembly: Assembly) -> str:
    """Estimate the time of `dtm train` here: small models are timed, large ones counted in operations."""
    config = assembly.config
    if config.budget is not None:
        return f"until {config.budget} are spent on rollouts and updates; evaluations are not counted"
    work = assembly.loop.work().shared(assembly.group.size)
    if isinstance(assembly.task, LanguageTask) and assembly.shape is not None:
        seconds = counted_seconds(
            assembly.shape,
            assembly.training_shape,
            config,
            assembly.placement,
            (work.rollouts, work.rows),
            assembly.prompt_width,
        )
    else:
        model = assembly.base if assembly.has_base else assembly.new_model().to(assembly.placement.device)
        timing = Timing(assembly.task, model, assembly.placement)
        update = timing.update(assembly.masking) + timing.forward()
        rollout = timing.rollout(assembly.decoder, config.decoding.batch)
        seconds = work.rollouts * rollout + work.rows * update
    return duration(seconds, assembly.placement)
