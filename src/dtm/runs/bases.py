"""Find and load the base π_0 of a run, and check it against the task."""

from __future__ import annotations

from dataclasses import asdict, replace
from importlib import resources
from pathlib import Path
from typing import Any

import torch

from dtm.config import LanguageConfig, ModelConfig, RunConfig
from dtm.errors import CheckpointError, ConfigError, nearest, require
from dtm.files import read_json
from dtm.loading import load_object
from dtm.models.denoiser import Denoiser
from dtm.models.families.settings import Asked
from dtm.models.hub import find_folder
from dtm.models.placement import Placement
from dtm.models.storage import load_model
from dtm.models.weights import is_finite
from dtm.runs.folder import RUNS, RunFolder
from dtm.tasks.base import Task

GIVEN = "given as an object"
"""Value of model.base for a model that was given to `dtm.train` as an object."""
SOURCES = ("smollm2",)
"""Sources of `dtm adapt`; as model.base they mean the newest model adapted from them."""
UNTRAINED = ("penalty",)
"""Fields of a task on which a base does not depend."""


def asked_for(model: ModelConfig) -> Asked:
    """Return the settings of a configuration that precede those of the base's files."""
    return Asked(mask_token=model.mask_token, attention=model.attention, block=model.block)


def is_factory(base: str | None) -> bool:
    """Return whether a base is a user's function that makes the model: path/to/file.py:function."""
    return base is not None and ".py:" in base


def find_base(config: RunConfig) -> Path | None:
    """Return the folder of the base: named, shipped or downloaded, or from the recipe's latest pretraining.

    None if there is no base yet, or if a user's function makes the model.
    """
    base = config.model.base
    if is_factory(base) or base == GIVEN:
        return None
    if base is None:
        made = RunFolder.pretrained(config.recipe)
        return None if made is None else made.model
    shipped = Path(str(resources.files("dtm.recipes") / "bases"))
    for folder in (Path(base), Path(base) / "model", shipped / base):
        if (folder / "config.json").is_file():
            return folder
    if "/" in base or Path(base).is_dir():
        return find_folder(base)
    adapted = adapted_model(base)
    if adapted is not None:
        return adapted
    names = [path.name for path in shipped.glob("*")] if shipped.is_dir() else []
    raise ConfigError(
        f"model.base: no model in {base!r}, neither as a folder nor shipped. {nearest(base, names)}"
    )


def adapted_model(name: str) -> Path | None:
    """Return the folder of the newest model adapted from a source; None if there is none of this name."""
    found = RunFolder.adapted(name)
    require(
        found is not None or name not in SOURCES,
        f"there is no adapted {name} under {RUNS}/. Make one with `dtm adapt {name}`, or name a model's "
        "folder (--model.base in `dtm train`)",
    )
    return None if found is None else found.model


def located(config: RunConfig) -> RunConfig:
    """Make the paths of a base and of own rows absolute, so that a run is found again from any folder."""
    base = config.model.base
    if base is not None and Path(base.partition(".py:")[0] + ".py" if is_factory(base) else base).exists():
        config = replace(config, model=replace(config.model, base=str(Path(base).absolute())))
    task = config.task
    if isinstance(task, LanguageConfig) and task.data is not None and Path(task.data).is_file():
        config = replace(config, task=replace(task, data=str(Path(task.data).absolute())))
    return config


def is_newest(base: str | None, folder: Path) -> bool:
    """Return whether a base's name means the newest model under ``runs/``, which may change later."""
    return base is None or (folder.parents[1:2] == (RUNS,) and not Path(base).is_dir())


def no_base(config: RunConfig) -> ConfigError:
    """Return the error of a run without a base."""
    return ConfigError(
        f"recipe {config.recipe!r} has no pretrained base, and there is no finished pretraining of it "
        f"under {RUNS}/. Run `dtm pretrain {config.recipe}` first, or name a folder with --model.base"
    )


def load_base(config: RunConfig, folder: Path | None, task: Task, placement: Placement) -> Denoiser:
    """Load the base onto the device, checked against the task's vocabulary."""
    if is_factory(config.model.base):
        model = load_object(str(config.model.base), "model")()
        require(
            isinstance(model, Denoiser),
            f"model {config.model.base} must return a dtm.Denoiser, got {type(model)}",
        )
        return check_base(model.to(placement.device), str(config.model.base), config, task)
    require(
        config.model.base != GIVEN,
        "the model of this run was given as a Python object: open the run with Run.open(path, model=…)",
    )
    folder = find_base(config) if folder is None else folder
    if folder is None:
        raise no_base(config)
    # A frozen base has the precision of the passes; trained weights stay in float32.
    dtype = torch.float32 if config.adapter.rank is None else placement.dtype
    asked = asked_for(config.model)
    model = load_model(folder, dtype=dtype, device=placement.device, nf4=config.model.nf4, asked=asked)
    check_base(model, str(folder), config, task)
    _check_task(folder, config)
    return model


def check_base(model: Denoiser, source: str, config: RunConfig, task: Task) -> Denoiser:
    """Raise an error for a model with another vocabulary than the task's."""
    for name in ("vocab_size", "mask_id", "eos_id"):
        found, wanted = getattr(model, name), getattr(task, name)
        require(
            found == wanted,
            f"the base in {source} has {name} {found}, task {task.name} needs {wanted}: it was trained for "
            f"another task. Run `dtm pretrain {config.recipe}` and pass its folder with --model.base",
        )
    bad = [name for name, value in model.named_parameters() if not is_finite(value.detach())]
    require(not bad, f"the base in {source} has weights that are not finite: {', '.join(bad[:3])}")
    return model


def _check_task(folder: Path, config: RunConfig) -> None:
    """Raise an error for a base that was pretrained on another task."""
    trained_for = folder / "task.json"
    if not trained_for.is_file():
        return
    saved = read_json(trained_for, CheckpointError)
    require(isinstance(saved, dict), f"{trained_for} is damaged: not a JSON object", CheckpointError)
    for name, wanted in asdict(config.task).items():
        require(
            name in UNTRAINED or _trained_for(name, saved.get(name, wanted)) == _trained_for(name, wanted),
            f"the base in {folder} was trained with task.{name} {saved.get(name)}, not {wanted}. "
            f"Run `dtm pretrain {config.recipe}` with the same flag, then pass its --model.base",
        )


def _trained_for(name: str, value: Any) -> Any:
    """Return the part of a task's field on which a base depends: of a data folder only its existence.

    With one, the published test items are held out of the corpus; without it, other ones.
    """
    return value is not None if name == "data_dir" else value
