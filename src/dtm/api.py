"""The few calls that make up the public interface: train, pretrain, evaluate, and a Run to look at.

The command line is a thin shell around these; whatever it does can be done from Python.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from dtm.capacity import preflight
from dtm.config import EvaluationConfig, RunConfig
from dtm.config.serialise import obstacles, to_yaml
from dtm.engine.collect import Collector
from dtm.errors import ConfigError, RewardError, require
from dtm.evaluation.evaluate import Evaluation, evaluate, evaluation_decoder
from dtm.evaluation.explain import differences
from dtm.loop import build
from dtm.loop.fingerprint import GROUPS, run_fingerprint
from dtm.loop.pretraining import Pretrainer
from dtm.loop.trainer import Trainer
from dtm.models.export import CONFIG as ADAPTER
from dtm.models.export import load_adapter, save_adapter
from dtm.models.merging import for_decoding
from dtm.models.policy import Policy
from dtm.models.storage import load_model, save_model
from dtm.models.transformer import Transformer
from dtm.random import derived_seed, stream
from dtm.recipes import recipe
from dtm.report.run import write_report
from dtm.runs.checkpoint import has_checkpoint
from dtm.runs.events import Callback, JsonLines, SampleFiles, read_events
from dtm.runs.folder import RunFolder, write_json, write_text
from dtm.runs.interrupts import Interrupted, Interrupts
from dtm.tasks.base import Reward


@dataclass(frozen=True, slots=True)
class Run:
    """A run on disk, finished or not."""

    folder: RunFolder

    @classmethod
    def open(cls, path: str | Path) -> Run:
        """The run in a folder."""
        return cls(RunFolder.find(Path(path)))

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self.folder.path

    @property
    def config(self) -> RunConfig:
        """The configuration it was started with, or continued with since."""
        return self.folder.read_config()

    @property
    def is_finished(self) -> bool:
        """False for a run that was stopped (or is still going)."""
        return self.folder.is_finished

    @property
    def summary(self) -> dict[str, Any]:
        """Base, tuned and best possible; there once the run has finished."""
        path = self.folder.finished(self.folder.summary)
        summary: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        return summary

    @property
    def model(self) -> Transformer:
        """The tuned (or pretrained) model."""
        folder = self.folder.finished(self.folder.model)
        if (folder / ADAPTER).is_file():
            config = self.config
            base = build.load_base(config, build.build_task(config))
            return load_adapter(folder, base)[0]
        return load_model(folder)

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Rows of metrics.jsonl of one kind: "step", "phase", "evaluation", "rollouts"."""
        return read_events(self.folder.metrics, kind)

    def evaluate(self, config: EvaluationConfig | None = None) -> Evaluation:
        """Measure the run's model on held-out prompts."""
        return measure(self.config, self.model, config)

    def sample(self, prompts: int = 2, completions: int = 1, base: bool = False, seed: int = 0) -> list[str]:
        """Completions of held-out prompts, drawn for a person to look at."""
        EvaluationConfig(prompts=prompts, completions=completions)  # refuses numbers below one
        config = self.config
        task, device = build.build_task(config), build.build_device(config)
        model = build.load_base(config, task) if base else self.model
        collector = build.build_collector(config, task, build.build_scorer(config, task), lambda: None)
        asked = task.prompts("test", prompts, stream(seed, "sample prompts")).to(device)
        collector.engine.load(for_decoding(model.to(device).eval(), collector.engine.decoder.fp8))
        with build.autocast(config, device):
            drawn = collector.collect(asked, completions, 0.0, derived_seed(seed, "sample noise"))
        return [task.show(p, c) for p, c in zip(drawn.prompts, drawn.completions, strict=True)]


def train(
    config: RunConfig | str,
    *,
    reward: Reward | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Tilt a recipe's base model towards a reward; the result lies in a folder of its own.

    ``reward`` is a function ``(prompts, completions, **columns) -> list[float | None]``; by default the
    task's. With ``resume`` the run in ``out`` (or the recipe's latest) continues where it was stopped; one
    that has finished is returned as it is.
    On SIGTERM or Ctrl-C the run saves itself and is returned unfinished.
    """
    require(reward is None or callable(reward), f"reward must be a function, got {reward!r}")
    config, found = _resolve(config, "train", out, resume, reward)
    if found is not None and found.is_finished:
        return Run(found)
    objective = build.build_objective(config)
    config = build.with_base(config)
    build.build_device(config)
    task = build.build_task(config)
    preflight.check(config, task)
    scorer = build.build_scorer(config, task, reward)
    build.check_columns(scorer, task)
    interpolant = build.build_interpolant(config, task)
    base = build.load_base(config, task)
    own_reward = reward is not None or config.reward.function is not None
    span = build.reward_range(config, task, own_reward)
    with Interrupts() as interrupts:
        collector = build.build_collector(config, task, scorer, interrupts.check)
        identity = run_fingerprint(config, task, scorer)
        if found is not None:
            identity = _require_same(found, identity)
            _note_changes(found, config)
        folder = found or RunFolder.create(config, "train", out)  # only now: nothing is left to go wrong
        write_json(folder.fingerprint, identity)
        callbacks = [JsonLines(folder.metrics), SampleFiles(folder.samples), *callbacks]
        trainer = Trainer(
            config,
            base,
            collector,
            objective,
            interpolant,
            span,
            callbacks,
            folder.checkpoints,
            interrupts.check,
        )
        if resume and has_checkpoint(folder.checkpoints):
            trainer.resume(folder.checkpoints)
        try:
            progress = trainer.run()
        except Interrupted:
            return Run(folder)
        except RewardError as problem:
            again = f"dtm train {config.recipe} --resume --out {shlex.quote(str(folder.path))}"
            if reward is not None:
                again = f"dtm.train({config.recipe!r}, reward=…, out={str(folder.path)!r}, resume=True)"
            raise RewardError(f"{problem}\nThe run is saved; it goes on with: {again}") from problem
    if trainer.accelerator.is_main_process:
        _save(trainer.policy, config, folder)
        write_report(folder, config, task, progress)
    return Run(folder)


def pretrain(
    config: RunConfig | str,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Train a recipe's base from scratch on the task's examples; pass its folder on as ``model.base``."""
    config, found = _resolve(config, "pretrain", out, resume)
    if found is not None and found.is_finished:
        return Run(found)
    device = build.build_device(config)
    task = build.build_task(config)
    model = build.new_model(config.model, task, config.seed)
    build.pretraining_masks(config, task)  # what cannot be is said before there is a folder
    with Interrupts() as interrupts:
        if found is not None:
            _note_changes(found, config)
        folder = found or RunFolder.create(config, "pretrain", out)
        callbacks = [JsonLines(folder.metrics), *callbacks]
        pretrainer = Pretrainer(config, task, model, device, callbacks, folder.checkpoints, interrupts.check)
        if resume and has_checkpoint(folder.checkpoints):
            pretrainer.resume(folder.checkpoints)
        try:
            bound = pretrainer.run()
        except Interrupted:
            return Run(folder)
    save_model(model, folder.model)
    write_json(folder.model / "task.json", asdict(config.task))
    result = measure(config, model, None)
    write_json(folder.summary, {"held_out_bound": bound, **result.measures, "best": result.best})
    return Run(folder)


def measure(config: RunConfig, model: Transformer, evaluation: EvaluationConfig | None) -> Evaluation:
    """Evaluate any model on the task and with the decoder of a configuration."""
    task = build.build_task(config)
    device = build.build_device(config)
    setting = evaluation or config.evaluation
    decoder = evaluation_decoder(build.build_decoder(config.decoding), setting)
    engine = build.build_engine(config, task, decoder)
    engine.load(for_decoding(model.to(device).eval(), decoder.fp8))
    with build.autocast(config, device):
        return evaluate(Collector(task, build.build_scorer(config, task), engine), setting, device)


def _save(policy: Policy, config: RunConfig, folder: RunFolder) -> None:
    """The finished model: all of its weights, or its adapter as a PEFT folder."""
    model: Transformer = policy.teacher  # type: ignore[assignment]
    if policy.lora is None:
        save_model(model, folder.model)
    else:
        save_adapter(model, policy.lora, folder.model, str(config.model.base))


def _resolve(
    config: RunConfig | str, kind: str, out: str | Path | None, resume: bool, reward: Reward | None = None
) -> tuple[RunConfig, RunFolder | None]:
    """The configuration to run and, for a resume, the folder to continue.

    A recipe's name continues a run as it was started; a whole configuration must be the same as its.
    A reward given as a function is noted by name, so that `dtm eval` finds it or says that it cannot.
    """
    if not resume:
        config = recipe(config) if isinstance(config, str) else config
        if reward is not None:
            name = f"{reward.__module__}:{getattr(reward, '__qualname__', repr(reward))}"
            config = replace(config, reward=replace(config.reward, function=name))
        return config, None
    recipe_name = config if isinstance(config, str) else config.recipe
    folder = RunFolder.latest(recipe_name, kind) if out is None else RunFolder.find(Path(out))
    saved = folder.read_config()
    if isinstance(config, str):
        return saved, folder
    if reward is not None:  # the function may have been mended since
        config = replace(config, reward=replace(config.reward, function=saved.reward.function))
    if config.model.base is None:  # then the run wrote down which one it found
        config = replace(config, model=replace(config.model, base=saved.model.base))
    changes = list(obstacles(saved, config))
    if changes:
        listed = "\n  ".join(changes)
        raise ConfigError(
            f"the run in {folder.path} was started with another configuration:\n  {listed}\n"
            "Leave these flags out to continue it, or start a new run: no --resume, and another --out."
        )
    return config, folder


def _note_changes(folder: RunFolder, config: RunConfig) -> None:
    """Write down with what a run goes on, where that may be changed."""
    if config != folder.read_config():
        write_text(folder.config, to_yaml(config))


def _require_same(folder: RunFolder, identity: Mapping[str, Any]) -> dict[str, Any]:
    """Refuse to go on with other data or another base; else the fingerprint, with the settings of today.

    A reward may have been mended.
    """
    if not folder.fingerprint.is_file():
        return dict(identity)
    groups = {group: GROUPS[group] for group in ("items", "training", "model")}
    before = json.loads(folder.fingerprint.read_text(encoding="utf-8"))
    found = "\n".join(differences(groups, before, identity))
    require(
        not found,
        f"what the run in {folder.path} started from has changed:\n{found}\n"
        "Put it back to continue it, or start a new run: no --resume, and another --out.",
    )
    return {**before, "settings": identity["settings"]}
