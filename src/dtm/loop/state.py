"""Pack a trainer's whole state into a checkpoint, and unpack it: weights, optimiser, buffer, counters."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from dtm.distributed.sharding import on_cpu, share_like
from dtm.loop.meter import Meter
from dtm.loop.progress import Progress
from dtm.loop.replay import Replay
from dtm.models.denoiser import Denoiser
from dtm.models.policy import Policy
from dtm.records import Rollouts
from dtm.runs.checkpoint import Checkpoint, Tensors


def pack(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    replay: Replay | None,
    meter: Meter | None,
    progress: Progress,
    keep: bool = True,
) -> Checkpoint:
    """Return all state that the next step depends on; random streams need none (see `dtm.random`).

    Collective: sharded weights are gathered, and kept by the processes with ``keep``.
    """
    tensors: dict[str, Tensors] = {
        "student": on_cpu(policy.weights(policy.student), keep),
        "teacher": on_cpu(policy.weights(policy.teacher), keep),
        "optimizer": on_cpu(optimizer_tensors(policy.student, optimizer), keep),
    }
    if policy.average is not None:
        tensors["average"] = on_cpu(policy.weights(policy.average), keep)
    if replay is not None:
        tensors["buffer"] = replay.rollouts.tensors()
    if meter is not None:
        tensors["meter"] = meter.state()
    return Checkpoint(tensors, progress.to_json())


def unpack(
    checkpoint: Checkpoint,
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
    hold: Callable[[Rollouts, float], Replay],
    meter_noise: Callable[[int], torch.Generator],
) -> tuple[Replay | None, Meter | None, Progress]:
    """Load models and optimiser in place; return the buffer, the meter and the counters.

    ``hold`` makes the buffer of rollouts and h; ``meter_noise`` is the generator of a phase's meter.
    """
    policy.load_weights(policy.student, checkpoint.tensors["student"])
    policy.load_weights(policy.teacher, checkpoint.tensors["teacher"])
    if policy.average is not None:
        policy.load_weights(policy.average, checkpoint.tensors["average"])
    load_optimizer(policy.student, optimizer, checkpoint.tensors["optimizer"])
    progress = Progress.from_json(checkpoint.state)
    if progress.h is None:
        return None, None, progress
    stored = {
        part: {name: value.to(device) for name, value in checkpoint.tensors[part].items()}
        for part in ("buffer", "meter")
        if part in checkpoint.tensors
    }
    replay = hold(Rollouts(**stored["buffer"], tilt=progress.tilt), progress.h)
    if "meter" not in stored:
        return replay, None, progress
    noise = meter_noise(progress.phase)
    return replay, Meter.restored(stored["meter"], progress.tilt, progress.h, noise), progress


def optimizer_tensors(model: Denoiser, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return Adam's moments, by the names of their parameters."""
    return {
        f"{name}/{key}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def load_optimizer(model: Denoiser, optimizer: torch.optim.Optimizer, tensors: Tensors) -> None:
    """Put Adam's moments back in place."""
    optimizer.state.clear()
    fused = bool(optimizer.defaults.get("fused"))  # the fused kernel counts steps on the device
    for name, parameter in model.named_parameters():
        prefix = f"{name}/"
        own = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
        if own:
            optimizer.state[parameter] = {
                key: value.clone() if key == "step" and not fused else _placed(key, value, parameter)
                for key, value in own.items()
            }


def _placed(key: str, value: Tensor, parameter: nn.Parameter) -> Tensor:
    """Move a tensor of the optimiser to the device of its parameter; shard moments like the parameter."""
    return value.to(parameter.device) if key == "step" else share_like(value, parameter)
