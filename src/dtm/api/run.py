"""`Run`: read a run's configuration, model and events from its folder; evaluate, sample and steer it."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from dtm.api.measuring import measure, steer
from dtm.config import EvaluationConfig, RunConfig
from dtm.engine import Uniform
from dtm.errors import require
from dtm.evaluation.evaluate import Evaluation
from dtm.loop.assemble import assemble
from dtm.loop.assembly import Assembly
from dtm.models.denoiser import Denoiser
from dtm.models.export import CONFIG as ADAPTER
from dtm.models.export import load_adapter
from dtm.models.merging import for_decoding
from dtm.models.storage import load_model
from dtm.models.transformer import Transformer
from dtm.random import derived_seed, stream
from dtm.runs.bases import check_base
from dtm.runs.events import read_events
from dtm.runs.folder import RunFolder, read_object
from dtm.steering import Steering
from dtm.steering.task import Answers
from dtm.tasks.base import Reward

WEIGHTS = "model.safetensors"
"""The file with the weights of a model that is not a native transformer."""


@dataclass(frozen=True)
class Run:
    """A run's folder, finished or not: its configuration, model and events."""

    folder: RunFolder
    given: Denoiser | None = None
    """The base model, if the run was started with a model given as an object."""
    reward: Reward | None = None
    """The reward, if the run's function cannot be imported by its name."""

    def __post_init__(self) -> None:
        require(
            isinstance(self.folder, RunFolder),
            f"a Run is made from a RunFolder; open the run with dtm.Run.open({str(self.folder)!r})",
        )

    @classmethod
    def open(cls, path: str | Path, model: Denoiser | None = None, reward: Reward | None = None) -> Run:
        """Open the run in a folder; ``model`` and ``reward`` are the objects that were given to `train`."""
        return cls(RunFolder.find(Path(path)), model, reward)

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self.folder.path

    @property
    def config(self) -> RunConfig:
        """The configuration of the run's start, or of its latest continuation."""
        return self.folder.read_config()

    @property
    def is_finished(self) -> bool:
        """False for a run that was stopped (or is still going)."""
        return self.folder.is_finished

    @property
    def summary(self) -> dict[str, Any]:
        """Measures of base and tuned model, and the best possible ones; a finished run has them."""
        return read_object(self.folder.finished(self.folder.summary))

    @cached_property
    def assembly(self) -> Assembly:
        """The parts of the run, resolved again from its configuration."""
        return assemble(self.config, model=self.given, reward=self.reward, opened=True)

    @property
    def model(self) -> Denoiser:
        """The tuned (or pretrained) model."""
        folder = self.folder.finished(self.folder.model)
        if (folder / ADAPTER).is_file():
            base = self.assembly.base
            assert isinstance(base, Transformer)
            return load_adapter(folder, base)[0]
        if (folder / "config.json").is_file():
            return load_model(folder)
        tuned = copy.deepcopy(self.assembly.base)  # a user's own model: its weights alone were saved
        tuned.load_state_dict(load_file(folder / WEIGHTS))
        return tuned

    def checked_model(self) -> Denoiser:
        """The model; an error if config.yaml was edited and names another task than the model's."""
        return check_base(self.model, str(self.folder.model), self.config, self.assembly.task)

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Rows of metrics.jsonl of one kind: "step", "phase", "evaluation", "rollouts"."""
        return read_events(self.folder.metrics, kind)

    def evaluate(self, config: EvaluationConfig | None = None) -> Evaluation:
        """Measure the run's model on held-out prompts."""
        return measure(self.assembly, self.checked_model(), config)

    def sample(self, prompts: int = 2, completions: int = 1, base: bool = False, seed: int = 0) -> list[str]:
        """Return completions of held-out prompts as text, each with the run's own reward."""
        EvaluationConfig(prompts=prompts, completions=completions)  # refuses numbers below one
        assembly = self.assembly
        task, device = assembly.task, assembly.placement.device
        model = assembly.base if base else self.checked_model()
        asked = task.prompts("test", prompts, stream(seed, "sample prompts")).to(device)
        collector = assembly.collector()
        collector.engine.load(for_decoding(model.to(device).eval(), assembly.decoder.fp8))
        with assembly.placement.autocast():
            drawn = collector.collect(asked, completions, 0.0, derived_seed(seed, "sample noise"))
        samples = zip(drawn.prompts, drawn.completions, drawn.rollouts.reward.tolist(), strict=True)
        return [f"{task.show(prompt, text)}\nreward {reward:.3f}" for prompt, text, reward in samples]

    def steer(
        self,
        method: Steering,
        prompts: int = 2,
        completions: int = 1,
        base: bool = False,
        correct: bool = False,
        temperature: float | None = None,
        seed: int = 0,
    ) -> Answers:
        """Return completions of held-out prompts, steered by the run's own reward with `BestOf` or `SMC`.

        The same prompts as those of `sample`; each is answered ``completions`` times, independently.

        Args:
            method: `BestOf` or `SMC`.
            prompts: number of test prompts.
            completions: answers per prompt.
            base: steer the base instead of the tuned model.
            correct: only for SMC: draw from the base's tilted law, with the tuned model as the proposal; in
                uniform order, at temperature 1 and without shortcuts.
            temperature: of the decoder; None: the run's own.
            seed: seed of the choice of prompts and of the draws.
        """
        EvaluationConfig(prompts=prompts, completions=completions)  # refuses numbers below one
        require(not (base and correct), "correct needs the tuned model as its proposal: leave out base")
        require(not correct or temperature is None, "correct draws at 1: leave out the temperature")
        assembly = self.assembly
        decoder = (
            assembly.decoder if temperature is None else replace(assembly.decoder, temperature=temperature)
        )
        if correct:  # the order must not depend on the model, nor tokens on a temperature
            decoder = replace(decoder.without_shortcuts, order=Uniform(), temperature=1.0)
        asked = assembly.task.prompts("test", prompts, stream(seed, "sample prompts")).repeat(completions)
        model = assembly.base if base else self.checked_model()
        target = assembly.base if correct else None
        return steer(assembly, model, method, asked, derived_seed(seed, "sample noise"), decoder, target)
