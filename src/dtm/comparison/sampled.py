"""Compare tuned models with steered sampling of the base: same test prompts, reward and decoder, no training.

Tuning costs once, steering costs with every answer: a row has the cost per answer, and the table's notes say
how many answers cost as much as a run. The mean reward of the tilted law is the reference for both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean
from typing import Any

import torch

from dtm import api
from dtm.api import Run
from dtm.config import RunConfig
from dtm.config.registry import load_method_class
from dtm.errors import require
from dtm.evaluation.evaluate import EVALUATION_SEED, held_out
from dtm.evaluation.length import effective_lengths
from dtm.loop.assembly import Assembly
from dtm.random import derived_seed
from dtm.runs.folder import kept_json
from dtm.steering import BestOf, Steering, parse_steering
from dtm.steering.reference import FEW, TiltedMean, tilted_mean
from dtm.steering.steer import require_tilt
from dtm.steering.task import Answers

ROLLOUTS = 128
"""Rollouts of the base per test prompt from which the tilted law's mean reward is estimated."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """Results of one way to steer the base, with one seed of the draws."""

    method: str
    seed: int
    test: dict[str, float]
    """Measures on the test prompts."""
    forwards: float
    """Forward passes per answer, counted per row."""
    rewards: float
    """Reward calls per answer."""
    tokens: float
    """Token positions per answer that the model processed."""


@dataclass(frozen=True, slots=True)
class Beside:
    """Results of steered sampling in a comparison, and of the tilted law."""

    rows: list[Sampled]
    forwards: float
    """Forward passes per draw of the base."""
    tokens: float
    """Token positions per draw of the base that the model processed."""
    tilted: TiltedMean | None
    """Mean reward of the tilted law; None if no tilt is known."""

    @property
    def methods(self) -> list[str]:
        """Names of the methods, in the order in which they were given."""
        return list(dict.fromkeys(row.method for row in self.rows))

    def of(self, method: str) -> list[Sampled]:
        """The rows of one method."""
        return [row for row in self.rows if row.method == method]

    def notes(self, spent: float) -> list[str]:
        """Return notes: how many answers cost as much as a run of ``spent`` tokens, and warnings."""
        found = []
        for name in self.methods:
            each = fmean(row.tokens for row in self.of(name))
            extra = each - self.tokens
            if extra > 0:
                found.append(
                    f"{name}: {each:.3g} tokens per answer, {self.tokens:.3g} for a single draw; training "
                    f"costs as much as this difference for {spent / extra:,.0f} answers"
                )
        if self.tilted is not None and self.tilted.poor:
            found.append(
                f"tilted law: {self.tilted.poor} test prompts have fewer than {FEW:g} effective rollouts of "
                f"{self.tilted.rollouts}: its mean is biased towards the base's"
            )
        return found


def check_also(text: str, tilt: float | None, configs: Mapping[str, RunConfig]) -> None:
    """Raise an error for a wrong --also before any run; ``configs`` are the methods' configurations."""
    require_tilt(tilt)
    assumed = 1.0 if tilt is None and any(map(_anneals, configs.values())) else tilt
    _named(text, assumed)
    require(
        all(config.decoding.temperature > 0 for config in configs.values()),
        "--also steers draws of the base, which are all equal at decoding.temperature 0: set "
        "--decoding.temperature 1",
    )


def beside(runs: Sequence[Run], text: str, tilt: float | None, seeds: Sequence[int]) -> Beside:
    """Steer the base of the runs in each way that ``text`` names, by default to the tilt of annealed runs.

    Results are kept in the folder of the first run.
    """
    check_also(text, tilt, {str(run.path): run.config for run in runs})
    reached = [float(run.summary["tilt"]) for run in runs if _anneals(run.config)]
    if tilt is None and reached:
        tilt = fmean(reached)
    first = runs[0]
    rows = [_kept(first, method, seed) for method in _named(text, tilt) for seed in seeds]
    base = kept_json(first.path / "test-base-rollouts.json", lambda: _rollouts(first.assembly))
    mean = None if tilt is None else tilted_mean(torch.tensor(base["reward"]), tilt)
    return Beside(rows, base["forwards"], base["tokens"], mean)


def _named(text: str, tilt: float | None) -> list[Steering]:
    methods = [parse_steering(name, tilt) for name in text.split(",") if name.strip()]
    require(bool(methods), "--also is empty: write best-of-N or smc-N, for example best-of-16,smc-16")
    names = [method.name for method in methods]
    require(len(set(names)) == len(names), f"--also: {text} names a method twice")
    return methods


def _kept(run: Run, method: Steering, seed: int) -> Sampled:
    path = run.path / f"test-base-{_label(method)}-{seed}.json"
    return Sampled(**kept_json(path, lambda: asdict(_sampled(run.assembly, method, seed))))


def _label(method: Steering) -> str:
    return method.name if method.tilt is None else f"{method.name}-tilt-{method.tilt:g}"


def _anneals(config: RunConfig) -> bool:
    return bool(load_method_class(config.method.name).loop == "anneal")


def _sampled(assembly: Assembly, method: Steering, seed: int) -> Sampled:
    """Answer every test prompt as often as an evaluation does."""
    setting = replace(assembly.config.evaluation, split="test")
    prompts = held_out(assembly.task, setting).repeat(setting.completions)
    answers = api.steer(assembly, assembly.base, method, prompts, _noise(seed))
    group = torch.arange(setting.prompts).repeat_interleave(setting.completions)
    effort, count = answers.steered.effort, len(prompts)
    return Sampled(
        method.name,
        seed,
        _measures(assembly, answers, group),
        effort.forwards / count,
        effort.rewards / count,
        effort.tokens / count,
    )


def _measures(assembly: Assembly, answers: Answers, group: torch.Tensor) -> dict[str, float]:
    task, prompts, steered = assembly.task, answers.prompts, answers.steered
    reward = torch.tensor(answers.rewards)
    measures = task.measure(prompts.views, answers.answers, reward, group, **prompts.columns)
    written = steered.rows.select(steered.answer).written
    length = float(effective_lengths(written, task.eos_id).float().mean())
    return {**measures, "length": length}


def _rollouts(assembly: Assembly) -> dict[str, Any]:
    """Draw plain rollouts of the base on the test prompts; return their rewards, and the cost per rollout."""
    prompts = held_out(assembly.task, replace(assembly.config.evaluation, split="test"))
    steered = api.steer(assembly, assembly.base, BestOf(n=ROLLOUTS), prompts, _noise(-1)).steered
    count = len(steered.reward)
    return {
        "reward": steered.reward.view(-1, ROLLOUTS).tolist(),
        "forwards": steered.effort.forwards / count,
        "tokens": steered.effort.tokens / count,
    }


def _noise(seed: int) -> int:
    return derived_seed(EVALUATION_SEED, "steering", seed)
