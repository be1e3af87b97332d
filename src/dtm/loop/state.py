"""Pack a trainer's whole state into a checkpoint, and unpack it: weights, optimiser, buffer, counters."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from dtm.distributed.sharding import held_rows, is_sharded, with_rows
from dtm.loop.meter import Meter
from dtm.loop.progress import Progress
from dtm.loop.replay import Replay
from dtm.models.denoiser import Denoiser
from dtm.models.policy import Policy
from dtm.records import Rollouts
from dtm.runs.checkpoint import Checkpoint, StoredCheckpoint, Tensors
from dtm.runs.stored import StoredTensors


def pack(
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    replay: Replay | None,
    meter: Meter | None,
    progress: Progress,
) -> Checkpoint:
    """Return all state that the next step depends on; random streams need none (see `dtm.random`).

    Sharded weights stay sharded.
    """
    tensors: dict[str, Tensors] = {name: policy.weights(model) for name, model in _models(policy).items()}
    tensors["optimizer"] = optimizer_tensors(policy.student, optimizer)
    if replay is not None:
        tensors["buffer"] = replay.rollouts.tensors()
    if meter is not None:
        tensors["meter"] = meter.state()
    return Checkpoint(tensors, progress.to_json())


def unpack(
    checkpoint: StoredCheckpoint,
    policy: Policy,
    optimizer: torch.optim.Optimizer,
    device: torch.device,
    hold: Callable[[Rollouts, float], Replay],
    meter_noise: Callable[[int], torch.Generator],
) -> tuple[Replay | None, Meter | None, Progress]:
    """Load models and optimiser in place; return the buffer, the meter and the counters.

    ``hold`` makes the buffer of rollouts and h; ``meter_noise`` is the generator of a phase's meter.
    """
    for name, model in _models(policy).items():
        stored, own = checkpoint.tensors[name], policy.weights(model)
        policy.load_weights(model, {key: read(stored, key, own.get(key)) for key in stored})
    load_optimizer(policy.student, optimizer, checkpoint.tensors["optimizer"])
    progress = Progress.from_json(checkpoint.state)
    if progress.h is None:
        return None, None, progress
    held = {
        part: {name: value.to(device) for name, value in checkpoint.tensors[part].items()}
        for part in ("buffer", "meter")
        if part in checkpoint.tensors
    }
    replay = hold(Rollouts(**held["buffer"], tilt=progress.tilt), progress.h)
    if "meter" not in held:
        return replay, None, progress
    noise = meter_noise(progress.phase)
    return replay, Meter.restored(held["meter"], progress.tilt, progress.h, noise), progress


def optimizer_tensors(model: Denoiser, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return Adam's moments, by the names of their parameters."""
    return {
        f"{name}/{key}": value
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def load_optimizer(model: Denoiser, optimizer: torch.optim.Optimizer, stored: StoredTensors) -> None:
    """Put Adam's moments back in place."""
    optimizer.state.clear()
    fused = bool(optimizer.defaults.get("fused"))  # the fused kernel counts steps on the device
    for name, parameter in model.named_parameters():
        prefix = f"{name}/"
        own = {key.removeprefix(prefix): key for key in stored if key.startswith(prefix)}
        if own:
            optimizer.state[parameter] = {
                key: stored[path].clone()
                if key == "step" and not fused
                else read(stored, path, None if key == "step" else parameter).to(parameter.device)
                for key, path in own.items()
            }


def read(stored: StoredTensors, name: str, like: Tensor | None) -> Tensor:
    """Read a tensor; if ``like`` is sharded, only the rows of it that this process keeps."""
    if like is None or not is_sharded(like):
        return stored[name]
    return with_rows(stored.rows(name, held_rows(like), of=like.shape[0]), like)


def _models(policy: Policy) -> dict[str, Denoiser]:
    """Return the models that a checkpoint holds, by name."""
    models = {"student": policy.student, "teacher": policy.teacher}
    return models if policy.average is None else {**models, "average": policy.average}
