"""From a RunConfig to the objects of a run; every mistake in it surfaces here, before any work."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import torch

from dtm.config import DecodingConfig, LanguageConfig, MiniConfig, ModelConfig, RunConfig
from dtm.engine import ORDERS, Decoder, LocalEngine, RolloutEngine
from dtm.engine.collect import Collector
from dtm.errors import ConfigError, nearest, require
from dtm.masking import Interpolant, MaskCount
from dtm.methods import CDTM, CONTROL_VARIATES, Objective
from dtm.methods.plans import build_baseline, build_plan
from dtm.models.adapters import LoRA
from dtm.models.hub import find_folder
from dtm.models.shape import TransformerConfig
from dtm.models.storage import load_model
from dtm.models.transformer import Transformer
from dtm.random import stream
from dtm.runs.folder import RUNS, RunFolder
from dtm.tasks.base import Reward, Task
from dtm.tasks.language.build import language_task
from dtm.tasks.maze import MazeTask
from dtm.tasks.mini import Countdown, MiniTask, Sudoku
from dtm.tasks.rewards import Scorer, load_function, require_call

UNTRAINED = ("penalty",)
"""Fields of a task that a base does not depend on."""


def build_device(config: RunConfig) -> torch.device:
    """The device that the configuration asks for, if it is there and can do the precision."""
    name = config.device
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    require(name in ("cpu", "cuda"), f"device must be auto, cpu or cuda, got {name!r}")
    require(name == "cpu" or torch.cuda.is_available(), "device is cuda, but torch sees no CUDA device")
    require(
        name == "cuda" or config.precision != "bfloat16",
        "precision bfloat16 needs a GPU: many CPUs cannot do its arithmetic. Use --precision float32.",
    )
    return torch.device(name)


def precision(config: RunConfig, device: torch.device) -> Literal["float32", "bfloat16"]:
    """The arithmetic to use on the device."""
    if config.precision == "auto":
        return "bfloat16" if device.type == "cuda" else "float32"
    return config.precision


def autocast(config: RunConfig, device: torch.device) -> torch.autocast:
    """A context in which models run in the configuration's precision."""
    return torch.autocast(device.type, torch.bfloat16, enabled=precision(config, device) == "bfloat16")


def compiles(config: RunConfig, device: torch.device) -> bool:
    """Whether the model's blocks are to be compiled; of themselves those in four bits are not."""
    fitting = device.type == "cuda" and not config.model.nf4
    return config.compile == "on" or (config.compile == "auto" and fitting)


def records(config: RunConfig, device: torch.device) -> bool:
    """Whether passes of updates are to be recorded and replayed: those of models trained in full on a GPU."""
    return compiles(config, device) and device.type == "cuda" and config.adapter.rank is None


def build_task(config: RunConfig) -> Task:
    """The task."""
    task = config.task
    if isinstance(task, MiniConfig):
        return _mini_task(task)
    if isinstance(task, LanguageConfig):
        return language_task(config, task)
    return MazeTask(
        size=task.size,
        door_fraction=task.door_fraction,
        maze_seed=task.seed,
        completion_length=task.completion_length,
        penalty=task.penalty,
    )


def _mini_task(task: MiniConfig) -> MiniTask:
    folder = None if task.data_dir is None else Path(task.data_dir)
    require(
        folder is None or folder.is_dir(),
        f"task.data-dir: no folder {task.data_dir}; leave it out to generate",
    )
    if task.kind == "sudoku-mini":
        return MiniTask(Sudoku(folder, task.seed, task.solved), task.skilled)
    return MiniTask(Countdown(folder, task.seed, task.solved), task.skilled)


def build_decoder(config: DecodingConfig) -> Decoder:
    """The decoder."""
    require(
        config.order in ORDERS, f"decoding.order: no order {config.order!r}. {nearest(config.order, ORDERS)}"
    )
    require(config.batch >= 1, f"decoding.batch must be at least 1, got {config.batch}")
    return Decoder(
        order=ORDERS[config.order](),
        block=config.block,
        tokens_per_step=config.tokens_per_step,
        temperature=config.temperature,
        certainty=config.certainty,
        cache=config.cache,
        refresh=config.refresh,
        until_end=config.until_end,
        fp8=config.fp8,
    )


def build_objective(config: RunConfig) -> Objective:
    """A baseline, or c-DTM with its control variate, by name or the user's own."""
    if config.objective.baseline is not None:
        return build_baseline(config.objective.baseline)
    name = config.objective.control_variate
    if ":" in name:
        return CDTM(load_function(name, "control variate"), config.objective.guard)
    require(
        name in CONTROL_VARIATES,
        f"objective.control-variate: no {name!r}. {nearest(name, CONTROL_VARIATES)} Or module:function.",
    )
    return CDTM(CONTROL_VARIATES[name], config.objective.guard)


def build_interpolant(config: RunConfig, task: Task) -> Interpolant:
    """The interpolant, by default with the decoder's blocks; a baseline has its own mask plan."""
    if config.objective.baseline is not None:
        return build_plan(config.objective.baseline, config.decoding.block, task.eos_id)
    end_id = _end_id(config, task)
    block = block_size(config.objective.block, config.decoding)
    require(
        end_id is None or block is not None,
        "objective.after-end can only be left out with blocks; any-order has none",
    )
    return MaskCount(block, end_id)


def pretraining_masks(config: RunConfig, task: Task) -> tuple[MaskCount, MaskCount]:
    """The interpolants of `dtm pretrain`: of most steps, and of the last ones if the base is to settle.

    The latter are those that tuning will use, so they leave out what that leaves out.
    """
    settings, decoding = config.pretrain, config.decoding
    require(
        not settings.settle or decoding.block is not None,
        "pretrain.settle is for a base that is decoded in blocks: give decoding.block, or set it to 0",
    )
    usual = MaskCount(block_size(settings.block, decoding))
    return usual, MaskCount(decoding.block, None if decoding.block is None else _end_id(config, task))


def _end_id(config: RunConfig, task: Task) -> int | None:
    """The token after which blocks are left out, if they are."""
    return None if config.objective.after_end else task.eos_id


def block_size(chosen: int | str, decoding: DecodingConfig) -> int | None:
    """A block size given as a number, as "any-order", or as that of the decoder."""
    if isinstance(chosen, int):
        return chosen
    return decoding.block if chosen == "decoding" else None


def build_scorer(config: RunConfig, task: Task, reward: Reward | None = None) -> Scorer:
    """The reward function: one given in Python, else the one named in the configuration, else the task's."""
    spec = config.reward.function
    function: Callable[..., Any]
    if reward is not None:
        function, name = reward, getattr(reward, "__name__", repr(reward))
    elif spec is not None:
        function, name = load_function(spec), spec
    else:
        require(config.task.kind != "custom", "your own data needs your own reward: --reward module:function")
        function, name = task.reward, f"{task.name}'s own"
    return Scorer(function, name, config.reward.on_error, config.reward.timeout, config.reward.declared)


def check_columns(scorer: Scorer, task: Task) -> None:
    """Refuse a reward that cannot be called with what the task's prompts come with."""
    require_call(scorer.function, scorer.name, task.prompts("train", 1, stream(0, "columns")).columns)


def reward_range(config: RunConfig, task: Task, own_reward: bool) -> float | None:
    """Width of the reward's range, where it is known: declared, or the task's."""
    if config.reward.declared is None:
        return None if own_reward else task.reward_range[1] - task.reward_range[0]
    low, high = config.reward.declared
    return high - low


def build_collector(config: RunConfig, task: Task, scorer: Scorer, between: Callable[[], None]) -> Collector:
    """Return the collector of a run, over the configured engine; weights are loaded later."""
    return Collector(task, scorer, build_engine(config, task, build_decoder(config.decoding), between))


def build_engine(
    config: RunConfig, task: Task, decoder: Decoder, between: Callable[[], None] = lambda: None
) -> RolloutEngine:
    """Return the engine that draws completions of a task with a decoder."""
    return LocalEngine(decoder, task.completion_length, config.decoding.batch, between)


def new_model(config: ModelConfig, task: Task, seed: int) -> Transformer:
    """A freshly initialised model for the task's vocabulary."""
    return Transformer(model_shape(config, task), stream(seed, "initial weights"))


def model_shape(config: ModelConfig, task: Task) -> TransformerConfig:
    """The shape of a model from scratch."""
    return TransformerConfig(
        vocab_size=task.vocab_size,
        mask_id=task.mask_id,
        eos_id=task.eos_id,
        width=config.width,
        layers=config.layers,
        heads=config.heads,
        ffn=config.ffn,
    )


def build_lora(config: RunConfig) -> LoRA | None:
    """The shape of the adapters, or None where all weights are trained."""
    adapter = config.adapter
    if adapter.rank is None:
        require(not config.model.nf4, "model.nf4 needs adapters: weights of four bits cannot be trained")
        return None
    return LoRA(
        rank=adapter.rank,
        alpha=adapter.alpha,
        dropout=adapter.dropout,
        targets=tuple(name.strip() for name in adapter.targets.split(",")),
    )


def base_folder(config: RunConfig) -> Path:
    """Where the pretrained base lies: a folder, or the name of one that ships with the package."""
    base = config.model.base
    if base is None:
        made = RunFolder.pretrained(config.recipe)
        require(
            made is not None,
            f"recipe {config.recipe!r} has no pretrained base, and there is no finished pretraining of it "
            f"under {RUNS}/. Run `dtm pretrain {config.recipe}` first, or name a folder with --model.base",
        )
        assert made is not None
        return made.model
    packaged = Path(str(resources.files("dtm.recipes") / "bases"))
    for folder in (Path(base), Path(base) / "model", packaged / base):
        if (folder / "config.json").is_file():
            return folder
    if "/" in base and not Path(base).exists():
        return find_folder(base)
    shipped = [path.name for path in packaged.glob("*")] if packaged.is_dir() else []
    raise ConfigError(
        f"model.base: no model in {base!r}, neither as a folder nor shipped. {nearest(base, shipped)}"
    )


def _trained_for(name: str, value: Any) -> Any:
    """What of a task's field matters to a base: of a data folder only whether there is one.

    With one the published test items are held out of the corpus, without it other ones.
    """
    return value is not None if name == "data_dir" else value


def with_base(config: RunConfig) -> RunConfig:
    """The configuration with its base written down, also where it is the latest pretraining."""
    if config.model.base is not None:
        return config
    return replace(config, model=replace(config.model, base=str(base_folder(config))))


def load_base(config: RunConfig, task: Task) -> Transformer:
    """The pretrained base, checked against the task's vocabulary."""
    folder, device = base_folder(config), build_device(config)
    # A frozen base is kept in the precision it is used in; weights that are trained stay in float32.
    dtype = torch.float32
    if build_lora(config) is not None and precision(config, device) == "bfloat16":
        dtype = torch.bfloat16
    model = load_model(folder, dtype=dtype, device=device, nf4=config.model.nf4)
    for name in ("vocab_size", "mask_id", "eos_id"):
        found, wanted = getattr(model, name), getattr(task, name)
        require(
            found == wanted,
            f"the base in {folder} has {name} {found}, task {task.name} needs {wanted}: it was trained for "
            f"another task. Run `dtm pretrain {config.recipe}` and pass its folder with --model.base",
        )
    trained_for = folder / "task.json"
    if trained_for.is_file():
        saved = json.loads(trained_for.read_text(encoding="utf-8"))
        for name, wanted in asdict(config.task).items():
            require(
                name in UNTRAINED
                or _trained_for(name, saved.get(name, wanted)) == _trained_for(name, wanted),
                f"the base in {folder} was trained with task.{name} {saved.get(name)}, not {wanted}. "
                f"Run `dtm pretrain {config.recipe}` with the same flag, then pass its --model.base",
            )
    return model
