"""Resolve a configuration into the parts of a run, each exactly once.

Cheap parts are built at once, so that every mistake in a configuration surfaces before any work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from dtm.config import LanguageConfig, MazeConfig, MiniConfig, RewardConfig, RunConfig, TaskConfig
from dtm.config.registry import load_method_class
from dtm.engine import build_decoder
from dtm.errors import DtmError, require
from dtm.loading import load_object
from dtm.loop.assembly import Assembly
from dtm.loop.names import method_name, object_name, reward_name
from dtm.loop.registry import make_loop
from dtm.methods.base import Method
from dtm.models.denoiser import Denoiser
from dtm.models.nf4 import bitsandbytes
from dtm.models.placement import Placement
from dtm.random import stream
from dtm.runs.bases import GIVEN, asked_for, find_base, located
from dtm.tasks.base import Reward, Task
from dtm.tasks.build import as_task, build_task
from dtm.tasks.rewards import Scorer, require_call


def assemble(
    config: RunConfig,
    *,
    task: Any = None,
    method: Method | None = None,
    model: Denoiser | None = None,
    reward: Reward | None = None,
    opened: bool = False,
) -> Assembly:
    """Resolve a configuration. An object given as an argument replaces the part that the configuration names.

    ``opened``: the configuration is that of a finished run, whose base may be gone until it is used.
    """
    config = located(config)
    found = method or load_method_class(config.method.name)(config.method)
    require(
        isinstance(found, Method),
        f"method: {found!r} is not an object of a class that derives from dtm.Method",
    )
    if method is not None:
        config = replace(config, method=replace(method.config, name=method_name(method, config.method.name)))
    if task is not None:
        own = getattr(task, "config", None)
        settings = own if isinstance(own, TaskConfig) else TaskConfig()
        config = replace(config, task=replace(settings, kind=object_name(task, config.task.kind)))
    if model is not None:
        config = replace(config, model=replace(config.model, base=GIVEN))
    if reward is not None and config.reward.function is None:
        config = replace(config, reward=replace(config.reward, function=reward_name(reward)))
    loop = make_loop(config, found)
    placement = Placement.resolve(config.device, config.precision, config.compile, config.model.nf4)
    if config.model.nf4:
        bitsandbytes()  # a missing library is an error before any work, also with --dry-run
    decoder = build_decoder(config.decoding)
    if not opened:
        found.check_decoding(config.decoding)
    folder = _find_base(config, opened)
    asked = asked_for(config.model)
    built = build_task(config.task, folder, asked) if task is None else as_task(task, folder, asked)
    scorer = build_scorer(config.reward, built, config.task, reward)
    require_call(scorer.function, scorer.name, built.prompts("train", 1, stream(0, "columns")).columns)
    own_reward = reward is not None or config.reward.function is not None
    span = config.reward.declared or (None if own_reward else built.reward_range)
    assembly = Assembly(
        config,
        placement,
        built,
        found,
        loop,
        decoder,
        scorer,
        None if span is None else span[1] - span[0],
        folder,
        model,
    )
    _ = assembly.masking, assembly.lora  # mistakes in them surface here
    return assembly


def build_scorer(
    settings: RewardConfig, task: Task, task_config: TaskConfig, reward: Reward | None = None
) -> Scorer:
    """Return the reward: the given function, else the one that the settings name, else the task's."""
    spec = settings.function
    function: Callable[..., Any]
    if reward is not None:
        function, name = reward, getattr(reward, "__name__", repr(reward))
    elif spec is not None:
        function, name = load_object(spec, "reward"), spec
    else:
        require(task_config.kind != "custom", "your own data needs your own reward: --reward module:function")
        function, name = task.reward, f"{task.name}'s own"
    trusted = function == task.reward and isinstance(task_config, MazeConfig | MiniConfig | LanguageConfig)
    return Scorer(
        function,
        name,
        settings.on_error,
        settings.timeout,
        settings.declared,
        settings.workers,
        settings.in_process or trusted,
    )


def _find_base(config: RunConfig, opened: bool) -> Path | None:
    """Return the folder of the base; None if it is not made yet, or was deleted after the run finished."""
    try:
        return find_base(config)
    except DtmError:
        if not opened:
            raise
        return None
