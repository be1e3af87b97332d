"""Find and load the model to evaluate, sample or export, by its name, its folder or its run.

The files are found first; weights are read when they are needed.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch

from dtm.config import LanguageConfig
from dtm.errors import CheckpointError, ConfigError, DtmWarning, require
from dtm.models.export import CONFIG as ADAPTER
from dtm.models.export import load_adapter, read_adapter
from dtm.models.families import read_shape
from dtm.models.families.settings import STORED, Asked
from dtm.models.hub import find_folder
from dtm.models.placement import Placement, Precision
from dtm.models.storage import load_model
from dtm.models.transformer import Transformer
from dtm.runs.bases import adapted_model, asked_for, find_base
from dtm.runs.folder import RunFolder
from dtm.tasks.language import Chat


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The files of a model: base, adapter and tokenizer, and the run that made it."""

    name: str
    """Name or folder, as given by the user."""
    base: str
    """Name or folder of the model, or of the adapter's base."""
    weights: Path
    """Folder with ``config.json`` and safetensors; with an adapter, that of its base."""
    adapter: Path | None
    """A PEFT folder."""
    tokenizer: Path
    """Folder with the tokenizer, if the model has one."""
    nf4: bool
    """Whether to load the weights in four bits, as in the run's training."""
    run: RunFolder | None
    """The run that made it."""
    asked: Asked = STORED
    """Settings that the model's files lack, as given in the run or by flags."""

    @classmethod
    def find(cls, name: str) -> ModelFiles:
        """Find the model of a run's folder, an adapter's folder, a model's folder, or a hub name."""
        path = Path(name)
        if (path / "config.yaml").is_file() and RunFolder(path).kind == "adapt":
            return cls.find(str(RunFolder(path).finished(RunFolder(path).model)))
        if (path / "config.yaml").is_file():
            return cls._of_run(name, RunFolder(path))
        if (path / ADAPTER).is_file():
            base = _base_of(path)
            below = find_folder(base)
            return cls(name, base, below, path, below, nf4=False, run=None)
        adapted = adapted_model(name) if path.name == name and not path.is_dir() else None
        if adapted is not None:
            return cls.find(str(adapted))
        folder = find_folder(name)
        return cls(name, name, folder, None, folder, nf4=False, run=None)

    def with_adapter(self, name: str) -> ModelFiles:
        """Return the model with a PEFT adapter, a folder or hub name; check it before weights are read.

        An adapter names the model that it was made for; another model of the same shape causes a warning.
        """
        require(
            self.adapter is None and self.run is None,
            f"{self.name} has an adapter already, or is a run: name its base instead",
        )
        folder = find_folder(name)
        read_adapter(folder, read_shape(self.weights, self.asked)[1])
        made_for = _base_of(folder)
        if Path(made_for).name != Path(self.name).name:
            warnings.warn(
                f"the adapter {folder} was made for {made_for}, and is used with {self.name}",
                DtmWarning,
                stacklevel=2,
            )
        return replace(self, name=f"{self.name}+{folder.name}", adapter=folder)

    def untuned(self) -> ModelFiles:
        """Return the base of a tuned run or an adapter."""
        if self.adapter is not None:
            return replace(self, name=self.base, adapter=None)
        below = None if self.run is None else find_base(self.run.read_config())
        require(
            below is not None,
            f"{self.name} is neither a tuned run nor an adapter: it has no base",
        )
        return ModelFiles.find(str(below))

    @classmethod
    def _of_run(cls, name: str, run: RunFolder) -> ModelFiles:
        folder, config = run.finished(run.model), run.read_config()
        base = config.model.base
        if (folder / ADAPTER).is_file():
            base = base or _base_of(folder)
            below = find_base(config) or find_folder(base)
            asked = asked_for(config.model)
            return cls(name, base, below, folder, below, config.model.nf4, run, asked)
        # A run that trained all weights has the tokenizer of its base.
        tokenizer = find_base(config) or folder
        return cls(name, str(folder), folder, None, tokenizer, nf4=False, run=run)


@dataclass(frozen=True, slots=True)
class Subject:
    """A loaded model with its tokenizer."""

    source: ModelFiles
    model: Transformer
    chat: Chat
    placement: Placement

    @classmethod
    def load(
        cls, source: ModelFiles, device: str = "auto", precision: Precision | Literal["auto"] = "auto"
    ) -> Subject:
        """Load a model on a device; auto: a GPU in bfloat16 if available, else the CPU in float32."""
        task = None if source.run is None else source.run.read_config().task
        if task is not None and not isinstance(task, LanguageConfig):
            raise ConfigError(
                f"{source.name} is a run of the task {task.kind}, which has no tokenizer: there is no "
                f"text to chat in or to prompt with. Use `dtm sample {source.name}` to see completions, and "
                f"`dtm eval {source.name}` without --task to measure them"
            )
        chat = Chat.load(source.tokenizer)  # a missing tokenizer is reported before weights are read
        placement = Placement.resolve(device, precision)
        model = load_model(
            source.weights,
            dtype=placement.dtype,
            device=placement.device,
            nf4=source.nf4,
            asked=source.asked,
        )
        require(
            len(chat) <= model.vocab_size,
            f"the tokenizer in {source.tokenizer} has {len(chat)} tokens, the model {model.vocab_size}: "
            "they do not belong together",
        )
        if source.adapter is not None:
            model = load_adapter(source.adapter, model)[0].to(placement.device)
        return cls(source, model.eval(), chat, placement)

    def autocast(self) -> torch.autocast:
        """Return the autocast context of the model: one precision for base and adapter."""
        return self.placement.autocast()

    @property
    def device(self) -> torch.device:
        """The device of the model."""
        return self.placement.device


def _base_of(adapter: Path) -> str:
    try:
        base = json.loads((adapter / ADAPTER).read_text(encoding="utf-8"))["base_model_name_or_path"]
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, KeyError) as problem:
        raise CheckpointError(f"no usable adapter in {adapter}: {problem}") from None
    require(isinstance(base, str), f"{adapter / ADAPTER} does not name its base", CheckpointError)
    return str(base)
