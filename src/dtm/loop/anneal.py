"""The annealing loop [Algorithm 1]: tilt by h, train until it is absorbed, π_a ← π_θ, a ← a + h, up to A."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, final

import torch

from dtm import tilts
from dtm.config import RunConfig
from dtm.errors import require
from dtm.loop.policy import Loop, Work, number, share
from dtm.loop.progress import Progress
from dtm.loop.replay import Replay, prompt_offset
from dtm.masking import Masking
from dtm.methods.base import Method
from dtm.records import MaskedStates, Rollouts, Weights


@final
class Anneal(Loop):
    """Phases a → a + h; each restarts the optimiser and its learning-rate schedule."""

    own_fields: ClassVar[tuple[str, ...]] = (
        *("tilt", "optimizer.warmup", "optimizer.decay", "optimizer.floor", "optimizer.ema"),
        *("replay.refresh_every", "replay.refresh_fraction", "replay.priority"),
    )
    axis: ClassVar[str] = "tilt $a$"
    measures_absorbed: ClassVar[bool] = True
    saves_phases: ClassVar[bool] = True

    def __init__(self, config: RunConfig, method: Method) -> None:
        super().__init__(config, method)
        tilt = config.tilt
        require(
            config.budget is not None or tilt.step == "auto" or tilt.step <= tilt.final,
            f"tilt.step must lie in (0, {tilt.final:g}] (tilt.final), got {tilt.step}",
        )

    @property
    def steps(self) -> int:
        """tilt.max_steps."""
        return self.config.tilt.max_steps

    @property
    def prompts(self) -> int:
        """replay.prompts."""
        return self.config.replay.prompts

    @property
    def final(self) -> float:
        """A."""
        return self.config.tilt.final if self.config.budget is None else math.inf

    @property
    def ema(self) -> float | None:
        """optimizer.ema."""
        return self.config.optimizer.ema

    @property
    def cooling_steps(self) -> int:
        """Steps over which the learning rate falls at the end of a phase."""
        return round(self.config.optimizer.decay * self.config.tilt.max_steps)

    def work(self) -> Work:
        """Buffers, refreshes and closing measurements of every phase."""
        tilt, replay, evaluation = self.config.tilt, self.config.replay, self.config.evaluation
        count = tilts.phases(tilt.final, tilt.step_cap if tilt.step == "auto" else tilt.step)
        refreshes = (tilt.max_steps - 1) // replay.refresh_every
        drawn = replay.prompts + refreshes * replay.refresh_prompts + replay.closing_prompts
        evaluations = math.ceil(count / evaluation.every) + 1
        return Work(
            count * replay.completions * drawn + evaluations * evaluation.prompts * evaluation.completions,
            count * tilt.max_steps * self.config.optimizer.batch,
        )

    def begin(self, rollouts: Rollouts, tilt: float, optimizer: torch.optim.Optimizer) -> float:
        """h: fixed, or the largest that keeps ESS at its target; the optimiser starts anew.

        Equal rewards keep ESS at 1 for every h and carry no signal, so auto falls back to its cap.
        """
        config = self.config.tilt
        step = config.step
        if step == "auto":
            centred = rollouts.reward - prompt_offset(rollouts, self.method.prompt_baseline)
            step = tilts.step_for_ess(centred.double(), config.ess, config.step_cap)
        optimizer.state.clear()
        return tilts.next_step(tilt, self.final, step)

    def idle_reason(self, replay: Replay) -> str | None:
        """All rewards of the buffer are equal."""
        equal = len(torch.unique(replay.rollouts.reward)) == 1
        return "no reward differs in the buffer: nothing to learn" if equal else None

    def draw(
        self, replay: Replay, masking: Masking, mask_id: int, update: int, generator: torch.Generator
    ) -> tuple[MaskedStates, Weights]:
        """Rollouts by priority, whose row weights make up for how often each is drawn."""
        rows, priority = self.config.optimizer.batch, self.config.replay.priority
        neutral = self.method.neutral_weight(replay.weights.log_z)
        rollouts, weights, factor = replay.draw(rows, priority, generator, neutral)
        states = masking.states(rollouts, mask_id, generator)
        return replace(states, row_weight=states.row_weight * factor), weights

    def refreshes(self, phase_step: int) -> bool:
        """Every replay.refresh_every steps."""
        return phase_step > 0 and phase_step % self.config.replay.refresh_every == 0

    def begins_to_cool(self, phase_step: int, surely_absorbed: float) -> bool:
        """Enough is absorbed, or the step limit leaves just enough steps to cool."""
        enough = self.config.tilt.absorbed
        absorbed = enough != "never" and surely_absorbed >= enough
        return absorbed or phase_step >= self.steps - self.cooling_steps

    def phase_is_over(self, phase_step: int, cooling_from: int | None) -> bool:
        """Cooled down, or all steps taken."""
        cooled = cooling_from is not None and phase_step >= cooling_from + self.cooling_steps
        return cooled or phase_step >= self.steps

    def lr_factor(self, phase_step: int, cooling_from: int | None) -> float:
        """Rise, hold, and fall once the phase is ending.

        A phase that ends at the full rate would hand its noise on to the next π_a.
        """
        optimizer = self.config.optimizer
        warmup = round(optimizer.warmup * self.steps)
        rise = min(1.0, (phase_step + 1) / max(warmup, 1))
        if cooling_from is None:
            return rise
        left = max(0.0, 1 - (phase_step - cooling_from) / max(self.cooling_steps, 1))
        return rise * (optimizer.floor + (1 - optimizer.floor) * left)

    def arrived(self, progress: Progress) -> str:
        """A was reached."""
        return f"reached the final tilt A = {self.config.tilt.final:g}"

    def place(self, tilt: float) -> str:
        """The tilt."""
        return f"a = {tilt:<5.3g}"

    def reached(self, tilt: float) -> str:
        """The tilt."""
        return f"tilt: a = {tilt:g}"

    def describe(self) -> dict[str, str]:
        """Phases and their buffers."""
        tilt, replay, budget = self.config.tilt, self.config.replay, self.config.budget
        count = "as ESS decides" if tilt.step == "auto" else str(tilts.phases(tilt.final, tilt.step))
        if budget is not None:
            count = f"as many as a budget of {budget} allows"
        reach = "" if budget else f", from a = 0 to A = {tilt.final:g}"
        renewed = "none renewed within it"
        if replay.refresh_every < tilt.max_steps:
            renewed = f"{replay.refresh_fraction:.0%} renewed every {replay.refresh_every} steps"
        return {
            "phases": f"{count}{reach}, at most {tilt.max_steps} steps each",
            "rollouts per phase": f"{replay.prompts} prompts × {replay.completions} completions, {renewed}",
        }

    def status(self, values: Mapping[str, Any], step: int) -> str:
        """Phase, tilt, reward, absorbed fraction, loss and ESS."""
        return (
            f"phase {values['phase'] + 1}  a {values['tilt']:.3g} + h {values['h']:.3g}  step {step}  "
            f"reward {number(values['reward'], 3)}  absorbed {share(values['absorbed'])}  "
            f"loss {values['loss']:.4f}  ESS {values['ess']:.2f}"
        )

    def closing(self, values: Mapping[str, Any]) -> str | None:
        """How the phase ended."""
        available = values["available"]
        return (
            f"phase {values['phase'] + 1}  a {values['tilt']:.3g} → {values['tilt'] + values['h']:.3g}  "
            f"{values['steps']} steps ({values['reason']})  ESS {values['ess']:.2f}  "
            f"absorbed {share(values['absorbed'])} ± {share(values['absorbed_error'])} "
            f"of {number(available if math.isfinite(available) else None, 3)} nats"
        )
