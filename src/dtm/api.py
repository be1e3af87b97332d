"""The few calls that make up the public interface: train, pretrain, evaluate, and a Run to look at.

The command line is a thin shell around these; whatever it does can be done from Python.
"""

from __future__ import annotations

import copy
import shlex
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from dtm.config import EvaluationConfig, RunConfig
from dtm.engine import Decoder, Uniform
from dtm.engine.collect import Collector
from dtm.errors import require
from dtm.evaluation.cost import bound, divergence, instructions
from dtm.evaluation.evaluate import Evaluation, evaluate, evaluation_decoder, held_out
from dtm.evaluation.explain import differences
from dtm.loop.assemble import Assembly, assemble
from dtm.loop.fingerprint import GROUPS, run_fingerprint
from dtm.loop.pretraining import pretrainer_of
from dtm.loop.trainer import Trainer
from dtm.masking import MaskCount, in_blocks
from dtm.methods.base import Method
from dtm.models.adapters import LoRA
from dtm.models.denoiser import Denoiser
from dtm.models.export import CONFIG as ADAPTER
from dtm.models.export import load_adapter, save_adapter
from dtm.models.merging import for_decoding
from dtm.models.storage import load_model, save_model
from dtm.models.transformer import Transformer
from dtm.models.weights import save_weights
from dtm.random import derived_seed, stream
from dtm.recipes import recipe
from dtm.records import Prompts
from dtm.report.page.write import RunPage
from dtm.report.run import write_report
from dtm.report.trackers import Track, require_tracker
from dtm.runs.bases import SOURCES, check_base, find_base
from dtm.runs.checkpoint import has_checkpoint
from dtm.runs.data import with_data
from dtm.runs.events import Callback, JsonLines, SampleFiles, read_events
from dtm.runs.folder import RunFolder, read_object
from dtm.runs.interrupts import Interrupted, Interrupts
from dtm.runs.resume import Resume, find_run, held, note_changes, require_same_config, with_remedy
from dtm.steering import Steering
from dtm.steering.task import Answers, steer_task
from dtm.tasks.base import Reward
from dtm.tasks.language import LanguageTask
from dtm.tasks.language.own import Source
from dtm.writing import write_json

WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class Run:
    """A run on disk, finished or not."""

    folder: RunFolder
    given: Denoiser | None = None
    """The base, for a run whose model was given as an object."""
    reward: Reward | None = None
    """The reward, for a run whose function cannot be found again by its name."""

    @classmethod
    def open(cls, path: str | Path, model: Denoiser | None = None, reward: Reward | None = None) -> Run:
        """The run in a folder; ``model`` and ``reward`` are those that `train` was given as objects."""
        return cls(RunFolder.find(Path(path)), model, reward)

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
        """The model; refused if it is not of the configuration's task, as after an edit of config.yaml."""
        return check_base(self.model, str(self.folder.model), self.config, self.assembly.task)

    def events(self, kind: str) -> list[dict[str, Any]]:
        """Rows of metrics.jsonl of one kind: "step", "phase", "evaluation", "rollouts"."""
        return read_events(self.folder.metrics, kind)

    def evaluate(self, config: EvaluationConfig | None = None) -> Evaluation:
        """Measure the run's model on held-out prompts."""
        return measure(self.assembly, self.checked_model(), config)

    def sample(self, prompts: int = 2, completions: int = 1, base: bool = False, seed: int = 0) -> list[str]:
        """Completions of held-out prompts as text, each with the run's own reward."""
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
        """Completions of held-out prompts, steered by the run's own reward with `BestOf` or `SMC`.

        The same prompts as those of `sample`; each is answered ``completions`` times, independently.

        Args:
            method: the steering.
            prompts: test prompts.
            completions: answers of each.
            base: steer the base instead of the tuned model.
            correct: SMC alone: draw from the base's tilted law, with the tuned model as the proposal; in
                uniform order, at temperature 1 and without shortcuts.
            temperature: of the decoder; None: the run's own.
            seed: which prompts and which noise.
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


def train(
    config: RunConfig | Assembly | str,
    *,
    method: Method | None = None,
    task: Any = None,
    model: Denoiser | None = None,
    reward: Reward | None = None,
    data: Source | None = None,
    out: str | Path | None = None,
    resume: Resume = False,
    callbacks: Sequence[Callback] = (),
    track: str | None = None,
) -> Run:
    """Tune a recipe's base model towards a reward; the result lies in a folder of its own.

    Args:
        config: A recipe's name, a `RunConfig`, or an `Assembly` (`dtm.loop.assemble.assemble`).
        method: A `dtm.Method` in place of the configuration's.
        task: A `Task`, or an object with ``splits`` of text rows and a ``reward``.
        model: A `dtm.Denoiser` to start from, in place of ``model.base``; it is trained in place.
        reward: A function ``(prompts, completions, **columns) -> list[float | None]``; by default the task's.
        data: Rows of the task custom: a list of dicts with a "prompt" and columns for the reward, a file, or
            "hub:USER/NAME". A list is stored as JSON lines in the folder that the run's folder lies in.
        out: The run's folder; by default a new one under ``runs/``.
        resume: Continue the run in ``out`` (or the recipe's latest); a finished one is returned as it is.
            ``"auto"``: if there is one (without ``out``, an unfinished one), else start.
        callbacks: Called with every `Event` of the run, in the first process if there are several.
        track: "tensorboard", "wandb" or "trackio": send the same numbers and samples there. "wandb:TITLE"
            names the run.

    On SIGTERM or Ctrl-C the run saves itself and is returned unfinished.
    """
    require(reward is None or callable(reward), f"reward must be a function, got {reward!r}")
    if track is not None:
        require_tracker(track)
    given = {"method": method, "task": task, "model": model, "reward": reward}
    assembly, found = _start(config, "train", out, resume, data, **given)
    if found is not None and found.is_finished:
        return Run(found, model, reward)
    assert assembly is not None
    config = assembly.run_config
    if found is not None:
        require_same_config(found, config)
    assembly.scorer.start()  # before this process takes memory and the GPU
    assembly.preflight()
    _ = assembly.base  # load it before there is a folder
    identity = run_fingerprint(assembly)
    if found is not None:
        identity = _require_same(found, identity)
    group = assembly.group
    with (
        held(found, config, "train", out, group) as folder,
        with_remedy(folder, _command(folder, config, "train", given)),
        ExitStack() as stack,
    ):
        with Interrupts() as interrupts:
            group.by_first(lambda: _note_start(folder, config, identity))
            page = RunPage(folder)
            writers = _writers(folder, config, page, track, stack) if group.is_first else []
            trainer = Trainer(
                assembly,
                callbacks=[*writers, *callbacks] if group.is_first else [],
                checkpoints=folder.checkpoints,
                between=interrupts.check,
            )
            if has_checkpoint(folder.checkpoints):
                trainer.resume(folder.checkpoints)
            try:
                progress = trainer.run()
                group.together(interrupts.check)
            except Interrupted:
                group.by_first(page.write)
                return Run(folder, model, reward)
        tuned = trainer.policy.tuned()
        group.by_first(lambda: _save(tuned, trainer.policy.lora, config, folder))
        group.by_first(lambda: write_report(folder, assembly, progress))
        group.by_first(page.write)
    return Run(folder, model, reward)


def _writers(
    folder: RunFolder, config: RunConfig, page: RunPage, track: str | None, stack: ExitStack
) -> list[Callback]:
    """What keeps the events of a run: its files, the page that is made from them, and a tracker."""
    writers: list[Callback] = [JsonLines(folder.metrics), SampleFiles(folder.samples), page]
    if track is not None:
        tracker = Track(track, folder, config)
        stack.callback(tracker.close)
        writers.append(tracker)
    return writers


def _note_start(folder: RunFolder, config: RunConfig, identity: Mapping[str, Any]) -> None:
    """Write down what a run starts or continues with."""
    note_changes(folder, config)
    write_json(folder.fingerprint, identity)


def _command(folder: RunFolder, config: RunConfig, kind: str, given: Mapping[str, Any]) -> str:
    """The command, or the call with the objects that were given, that continues a run."""
    objects = ", ".join(f"{name}=…" for name, part in given.items() if part is not None)
    if objects:
        return f"dtm.{kind}({config.recipe!r}, {objects}, out={str(folder.path)!r}, resume=True)"
    return f"dtm {kind} {config.recipe} --resume --out {shlex.quote(str(folder.path))}"


def pretrain(
    config: RunConfig | Assembly | str,
    *,
    task: Any = None,
    out: str | Path | None = None,
    resume: Resume = False,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Train a recipe's base from scratch on the task's examples; pass its folder on as ``model.base``."""
    assembly, found = _start(config, "pretrain", out, resume, None, task=task)
    if found is not None and found.is_finished:
        return Run(found)
    assert assembly is not None
    config = assembly.config
    assembly.pretraining_masks()  # mistakes surface before there is a folder
    if found is not None:
        require_same_config(found, config)
    given, group = {"task": task}, assembly.group
    with (
        held(found, config, "pretrain", out, group) as folder,
        with_remedy(folder, _command(folder, config, "pretrain", given)),
    ):
        with Interrupts() as interrupts:
            group.by_first(lambda: note_changes(folder, config))
            pretrainer = pretrainer_of(
                assembly,
                callbacks=[JsonLines(folder.metrics), *callbacks] if group.is_first else [],
                checkpoints=folder.checkpoints,
                between=interrupts.check,
            )
            if has_checkpoint(folder.checkpoints):
                pretrainer.resume(folder.checkpoints)
            try:
                bound = pretrainer.run()
                group.together(interrupts.check)
            except Interrupted:
                return Run(folder)
        result = measure(assembly, pretrainer.model)
        found_values = {"held_out_bound": bound, **result.measures, "best": result.best}
        group.by_first(lambda: _write_base(folder, config, pretrainer.model, found_values))
    return Run(folder)


def _write_base(
    folder: RunFolder, config: RunConfig, model: Transformer, measures: Mapping[str, float | None]
) -> None:
    """Write a pretrained model, its task and its measures; the last file makes the run a finished one."""
    save_model(model, folder.model)
    write_json(folder.model / "task.json", asdict(config.task))
    write_json(folder.summary, measures)


def measure(assembly: Assembly, model: Denoiser, evaluation: EvaluationConfig | None = None) -> Evaluation:
    """Evaluate a model on the task and with the decoder of an assembly."""
    placement, setting = assembly.placement, evaluation or assembly.config.evaluation
    engine = assembly.engine(evaluation_decoder(assembly.decoder, setting))
    engine.load(for_decoding(model.to(placement.device).eval(), engine.decoder.fp8))
    with placement.autocast():
        collector = Collector(assembly.task, assembly.scorer, engine, assembly.group)
        return evaluate(collector, setting, placement.device)


def steer(
    assembly: Assembly,
    model: Denoiser,
    method: Steering,
    prompts: Prompts,
    seed: int,
    decoder: Decoder | None = None,
    target: Denoiser | None = None,
) -> Answers:
    """Steer a model on prompts of an assembly's task, with its reward and, by default, its decoder."""
    placement, decoder = assembly.placement, decoder or assembly.decoder
    decoder = replace(decoder, refresh=1)  # rows stop at the end of each block

    def ready(given: Denoiser) -> Denoiser:
        return for_decoding(given.to(placement.device).eval(), decoder.fp8)

    with placement.autocast():
        return steer_task(
            ready(model),
            assembly.task,
            assembly.scorer,
            prompts.to(placement.device),
            method,
            decoder,
            seed=seed,
            batch=assembly.config.decoding.batch,
            target=None if target is None else ready(target),
        )


def tuning_cost(assembly: Assembly, tuned: Transformer, evaluation: EvaluationConfig) -> dict[str, float]:
    """What tuning a language model cost: KL to its base, and both bounds on held-out instructions.

    In nats per sequence. The completions are drawn from the tuned model as in its rollouts.
    """
    placement, task, base = assembly.placement, assembly.task, assembly.base
    tuned, base = tuned.to(placement.device).eval(), base.to(placement.device).eval()
    collector = assembly.collector()
    collector.engine.load(for_decoding(tuned, assembly.decoder.fp8))
    prompts = held_out(task, evaluation).to(placement.device)
    masks, costs = in_blocks(MaskCount(assembly.decoder.block), tuned.attention_block), dict[str, float]()
    with placement.autocast():
        drawn = collector.collect(prompts, 1, 0.0, derived_seed(0, "cost")).rollouts
        costs["KL to base"] = divergence(tuned, base, drawn, masks)
        if isinstance(task, LanguageTask) and assembly.base_folder is not None:
            general = instructions(assembly.base_folder, task.chat, task.eos_id, tuned.attention_block)
            if general is not None:
                general = general.to(placement.device)
                costs["bound on instructions, base"] = bound(base, general, masks)
                costs["bound on instructions, tuned"] = bound(tuned, general, masks)
    return costs


def _save(model: Denoiser, lora: LoRA | None, config: RunConfig, folder: RunFolder) -> None:
    """Write the finished model: all of its weights, or its adapter as a PEFT folder."""
    if not isinstance(model, Transformer):
        save_weights(folder.model / WEIGHTS, model.state_dict())
    elif lora is None:
        save_model(model, folder.model)
    else:
        base = str(config.model.base)
        if Path(base).is_dir():  # also a run's, whose model lies in a folder below
            base = str(find_base(config))
        save_adapter(model, lora, folder.model, base)


def _start(
    config: RunConfig | Assembly | str,
    kind: str,
    out: str | Path | None,
    resume: Resume,
    data: Source | None,
    **given: Any,
) -> tuple[Assembly | None, RunFolder | None]:
    """The parts of the run to start (None: it has finished) and, for a resume, the folder to continue."""
    if isinstance(config, Assembly):
        extra = [name for name, part in {**given, "data": data}.items() if part is not None]
        require(not extra, f"{', '.join(extra)}: give objects to assemble(…), not beside an Assembly")
        found = find_run(config.config.recipe, kind, out, resume)
        if found is not None and found.is_finished:
            require_same_config(found, config.run_config)
        return config, found
    config, found = _resolve(config, kind, out, resume, given.get("reward"))
    if data is not None:
        require(given.get("task") is None, "data and task: a task has rows of its own. Give one of the two")
        config = with_data(config, data, out if found is None else found.path)
    if found is None or not found.is_finished:
        return assemble(config, **given), found
    if given.get("method") is None and given.get("task") is None:  # objects bring settings of their own
        require_same_config(found, config)
    return None, found


def _resolve(
    config: RunConfig | str, kind: str, out: str | Path | None, resume: Resume, reward: Reward | None = None
) -> tuple[RunConfig, RunFolder | None]:
    """The configuration to run and, for a resume, the folder to continue.

    A recipe's name continues a run as it was started; a whole configuration must be the same as the run's.
    """
    name = config if isinstance(config, str) else config.recipe
    folder = find_run(name, kind, out, resume)
    if folder is None:
        config = recipe(config) if isinstance(config, str) else config
        if reward is not None:  # `assemble` records the function's own name
            config = replace(config, reward=replace(config.reward, function=None))
        return config, None
    saved = folder.read_config()
    if isinstance(config, str):
        return saved, folder
    if reward is not None:  # the function may have been fixed since
        config = replace(config, reward=replace(config.reward, function=saved.reward.function))
    if config.model.base in (None, *SOURCES):  # the run has written down which one it found
        config = replace(config, model=replace(config.model, base=saved.model.base))
    return config, folder


def _require_same(folder: RunFolder, identity: Mapping[str, Any]) -> dict[str, Any]:
    """Refuse to continue with other data or another base; else the fingerprint with today's settings.

    The reward may have been fixed since.
    """
    if not folder.fingerprint.is_file():
        return dict(identity)
    groups = {group: GROUPS[group] for group in ("items", "training", "model")}
    before = read_object(folder.fingerprint)
    found = "\n".join(differences(groups, before, identity))
    require(
        not found,
        f"the data or the base of the run in {folder.path} have changed:\n{found}\n"
        "Restore them to continue it, or start a new run: no --resume, and another --out.",
    )
    return {**before, "settings": identity["settings"]}
