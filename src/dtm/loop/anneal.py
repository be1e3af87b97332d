"""The annealing loop [Algorithm 1]: tilt by h, train until it is absorbed, π_a ← π_θ, a ← a + h, up to A."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, final

import torch

from dtm import tilts
from dtm.config import RunConfig
from dtm.errors import DtmWarning, require
from dtm.loop.base import Loop, Work, number, reading
from dtm.loop.meter import STATES, Reading
from dtm.loop.progress import Progress
from dtm.loop.replay import Replay, prompt_offset
from dtm.masking import Masking
from dtm.methods.base import Method
from dtm.records import MaskedStates, Rollouts, Weights

READINGS = 8
"""Number of measures of the absorbed share in a phase that takes all its steps."""
LANDING = 0.2
"""Share of tilt.max-steps over which the learning rate falls to zero if a phase ends early."""
LITTLE = 0.5
"""Absorbed share below which, beyond the error, the cause is printed at the end of a phase."""

FEW_PHASES = 5
"""A budget with room for fewer phases is warned of."""


@final
class Anneal(Loop):
    """Phases a → a + h; each restarts the optimiser and its learning-rate schedule."""

    own_fields: ClassVar[tuple[str, ...]] = (
        *("tilt", "optimizer.warmup", "optimizer.decay", "optimizer.floor", "optimizer.ema"),
        *("replay.refresh_every", "replay.refresh_fraction", "replay.held_out", "replay.priority"),
    )
    measures_absorbed: ClassVar[bool] = True
    saves_phases: ClassVar[bool] = True

    def __init__(self, config: RunConfig, method: Method) -> None:
        super().__init__(config, method)
        tilt = config.tilt
        require(
            config.budget is not None or tilt.step == "auto" or tilt.step <= tilt.final,
            f"tilt.step must lie in (0, {tilt.final:g}] (tilt.final), got {tilt.step}. "
            "Lower --tilt.step or raise --tilt.final",
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

    @property
    def landing_steps(self) -> int:
        """Steps over which it falls where a phase ends early."""
        return max(1, round(LANDING * self.steps))

    def work(self) -> Work:
        """Buffers, refreshes and the meter's rollouts of every phase."""
        tilt, replay, evaluation = self.config.tilt, self.config.replay, self.config.evaluation
        count = tilts.phases(tilt.final, tilt.step_cap if tilt.step == "auto" else tilt.step)
        refreshes = (tilt.max_steps - 1) // replay.refresh_every
        drawn = replay.prompts + refreshes * replay.refresh_prompts + replay.held_out_prompts
        evaluations = math.ceil(count / evaluation.every) + 1
        # A row of a reading costs one forward pass, a row of an update as much as four.
        read = (READINGS + 2) * STATES * replay.held_out_prompts * replay.completions // 4
        return Work(
            count * replay.completions * drawn + evaluations * evaluation.prompts * evaluation.completions,
            count * (tilt.max_steps * self.config.optimizer.batch * self.method.rows_per_rollout + read),
        )

    def begin(self, rollouts: Rollouts, tilt: float, optimizer: torch.optim.Optimizer) -> float:
        """Restart the optimiser and return h: fixed, or the largest that keeps ESS at its target.

        Equal rewards keep ESS at 1 for every h and carry no signal, so auto falls back to its cap.
        """
        config = self.config.tilt
        step = config.step
        if step == "auto":
            reward, group = rollouts.reward.cpu(), rollouts.group.cpu()  # see `Replay`
            centred = reward - prompt_offset(reward, group, self.method.prompt_baseline)
            step = tilts.step_for_ess(centred.double(), config.ess, config.step_cap)
        optimizer.state.clear()
        return tilts.next_step(tilt, self.final, step)

    def idle_reason(self, replay: Replay) -> str | None:
        """Return the reason if all rewards of the buffer are equal."""
        equal = len(torch.unique(replay.rollouts.reward)) == 1
        return "no reward differs in the buffer: nothing to learn" if equal else None

    def draw(
        self, replay: Replay, masking: Masking, mask_id: int, update: int, generator: torch.Generator
    ) -> tuple[MaskedStates, Weights]:
        """Draw rollouts by priority; row weights correct for the probability of each draw."""
        rows, priority = self.config.optimizer.batch, self.config.replay.priority
        neutral = self.method.neutral_weight(replay.weights.log_z)
        rollouts, weights, factor = replay.draw(rows, priority, generator, neutral)
        states = masking.states(rollouts, mask_id, generator)
        factor = factor.repeat_interleave(states.draws)  # the draws of a rollout are neighbouring rows
        return replace(states, row_weight=states.row_weight * factor), weights

    def refreshes(self, phase_step: int) -> bool:
        """Return whether to refresh before this step: every replay.refresh_every steps."""
        return phase_step > 0 and phase_step % self.config.replay.refresh_every == 0

    def reads_meter(self, phase_step: int) -> bool:
        """Return whether to measure before this step: `READINGS` times per phase, if the result matters."""
        every = max(1, self.steps // READINGS)
        return self.config.tilt.absorbed != "never" and phase_step > 0 and phase_step % every == 0

    def reason_to_land(self, absorbed: float, stalled: bool) -> str | None:
        """Return the reason to end the phase: enough is absorbed, or the absorbed share stops rising."""
        enough = self.config.tilt.absorbed
        if enough == "never":
            return None
        if absorbed >= enough:
            return "absorbed"
        return "no longer rising" if stalled else None

    def phase_is_over(self, progress: Progress) -> bool:
        """Return whether the phase has landed, or taken all its steps."""
        start = progress.landing_from
        landed = start is not None and progress.phase_step >= start + self.landing_steps
        return landed or progress.phase_step >= self.steps

    def lr_factor(self, phase_step: int, landing_from: int | None = None) -> float:
        """Return the factor on the learning rate: rise, hold and fall; in a landing, fall faster.

        A phase that ended at the full rate would pass its noise on to the next π_a.
        """
        optimizer, steps = self.config.optimizer, self.steps
        rise = min(1.0, (phase_step + 1) / max(round(optimizer.warmup * steps), 1))
        left = min(1.0, (steps - phase_step) / max(self.cooling_steps, 1))
        factor = rise * (optimizer.floor + (1 - optimizer.floor) * left)
        if landing_from is None:
            return factor
        return factor * max(0.0, 1 - (phase_step - landing_from) / self.landing_steps)

    def cause(self, ess: float, absorbed: Reading | None, on_buffer: float | None) -> str | None:
        """Return the cause of a low absorbed share: ESS, few prompts, a small buffer, or small updates."""
        if absorbed is None:
            return None
        if ess >= tilts.LOW_ESS and math.isinf(absorbed[1]):
            return "too few prompts are held out to measure the absorbed share: raise --replay.prompts"
        if LITTLE <= absorbed[0] + absorbed[1] < math.inf:
            return None
        if ess < tilts.LOW_ESS:
            return f"the weights rest on {ess:.1%} of the rollouts: use --tilt.step auto, or a smaller one"
        if on_buffer is not None and on_buffer >= LITTLE:
            return (
                f"the student has absorbed {on_buffer:.0%} of the tilt on the rollouts that it is trained on,"
                " but little on held-out ones: raise --replay.prompts"
            )
        return "the updates are too small for this tilt: raise --optimizer.lr or --tilt.max-steps"

    def check_room(self, spent: float) -> None:
        """Warn if the budget has room for few phases of this length."""
        if spent <= 1 / FEW_PHASES:
            return
        room = f"which has room for {1 / spent:.1f} phases" if spent < 1 else "and did not end within it"
        warnings.warn(
            f"the first phase took {spent:.0%} of the budget of {self.config.budget}, {room}. Shorter phases "
            "may reach a larger tilt: lower --tilt.max-steps and --replay.prompts, say to a quarter",
            DtmWarning,
            stacklevel=2,
        )

    def arrived(self, progress: Progress) -> str:
        """Describe the end of a run that has reached A."""
        return f"reached the final tilt A = {self.config.tilt.final:g}"

    def place(self, tilt: float) -> str:
        """The tilt."""
        return f"a = {tilt:<5.3g}"

    def reached(self, tilt: float) -> str:
        """The tilt."""
        return f"tilt: a = {tilt:g}"

    def describe(self) -> dict[str, str]:
        """Describe the phases and their buffers."""
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
        """Format phase, tilt, reward, absorbed share, loss and ESS."""
        return (
            f"phase {values['phase'] + 1}  a {values['tilt']:.3g} + h {values['h']:.3g}  step {step}  "
            f"reward {number(values['reward'], 3)}  "
            f"absorbed {reading(values['absorbed'], values['absorbed_error'])}  "
            f"loss {values['loss']:.4f}  ESS {values['ess']:.2f}"
        )

    def closing(self, values: Mapping[str, Any]) -> str | None:
        """Format the end of a phase: its reason and measures, and the cause of a low absorbed share."""
        cause = f": {values['cause']}" if values["cause"] else ""
        return (
            f"phase {values['phase'] + 1}  a {values['tilt']:.3g} → {values['tilt'] + values['h']:.3g}  "
            f"{values['steps']} steps ({values['reason']})  ESS {values['ess']:.2f}  "
            f"absorbed {reading(values['absorbed'], values['absorbed_error'])}{cause}"
        )
