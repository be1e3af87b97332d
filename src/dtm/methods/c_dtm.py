"""The c-DTM objective on a batch of masked states  [eqs. 16, 17; SAR: eq. 34]."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from dtm import losses
from dtm.config import DecodingConfig, MethodConfig, RunConfig
from dtm.config.rules import SHARE_BELOW_1, check_fields
from dtm.errors import ConfigError, nearest, require
from dtm.loading import load_object
from dtm.losses import AdaptiveControl
from dtm.masking import EveryBlock, MaskCount
from dtm.methods.base import Changes, Method
from dtm.methods.control_variates import CONTROL_VARIATES, ControlVariate
from dtm.models.policy import Policy
from dtm.records import Loss, MaskedStates, Phase, Weights

HELD = 2**26
"""Logits of four bytes each: 530 positions over a vocabulary of 126,464. A micro-batch of 24 rows scores 396
on average in blocks of 32, so it runs the head once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CDTMConfig(MethodConfig):
    """c-DTM: weighted cross-entropy towards the tilted posterior, with a control variate."""

    name: str = "c-dtm"
    control_variate: str = "adaptive"
    """Control variate c: zero, one (the paper's), mean, loo (leave one out), adaptive (closed form from past
    batches), or module:function for your own function of x_t."""
    guard: bool = True
    """Drop the advantage where π_θ/π_a leaves e^{±h·range(r)}, which the target never does."""
    prompt_baseline: bool = True
    """Subtract the mean reward of the prompt's other completions. The target π_{a+h} stays the same, but
    prompts whose rewards are always high no longer dominate."""
    block: int | Literal["decoding", "any-order", "every"] = "decoding"
    """Block size of the masks, in tokens; decoding: that of the decoder. every: masks in every block of a
    block-causal model, scored in one pass over x_t and x_1 with twice the positions."""
    after_end: bool = True
    """Also train on blocks after the end of a completion. Their loss is zero for a model that has learned
    end tokens, so false saves work; requires blocks."""
    control_memory: float = 0.95
    """Decay rate of the running estimate of adaptive c, per step."""

    def __post_init__(self) -> None:
        check_fields("method", self, control_memory=SHARE_BELOW_1)


@final
class CDTM(Method):
    """Weighted cross-entropy towards T_c = (c π_a + (e^{hr} − c) 1{x_1}) / e^{hr}."""

    Config = CDTMConfig
    config: CDTMConfig
    loop: ClassVar[Literal["anneal", "iterate"]] = "anneal"

    def __init__(
        self,
        config: CDTMConfig | None = None,
        *,
        control_variate: ControlVariate | None = None,
        held: int = HELD,
    ) -> None:
        """``control_variate`` replaces the one that ``config`` names.

        At most ``held`` logits of one model are in memory at a time. More positions are taken in parts, whose
        distributions are recomputed in the backward pass: less memory, the same loss.
        """
        super().__init__(config)
        self.control_variate = control_variate or find_control_variate(self.config.control_variate)
        self.held = held

    @property
    def prompt_baseline(self) -> bool:
        """The value of the configuration."""
        return self.config.prompt_baseline

    def credit(self, reward: Float[Tensor, " N"], group: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
        """Return 0: c-DTM weighs rollouts by e^{hr} instead."""
        return torch.zeros_like(reward)

    def new_control(self) -> AdaptiveControl:
        """Return a new estimate with the configured memory."""
        return AdaptiveControl(self.config.control_memory)

    def neutral_weight(self, log_z: float) -> float:
        """Return c̄ if it is known in advance: a rollout with w̄ = c̄ only distils π_a."""
        known = {"zero": 0.0, "one": math.exp(-log_z)}
        return known.get(self.config.control_variate, 1.0)

    def tuning(self, config: RunConfig) -> tuple[Changes, ...]:
        """Twice the tilt per phase, and the paper's c = 1 without the guard."""
        tilt = config.tilt
        wider: Changes = {"step": 2 * tilt.step} if tilt.step != "auto" else {"ess": tilt.ess / 2}
        return {"tilt": wider}, {"control_variate": "one", "guard": False}

    def masks(self, block: int | None, end_id: int) -> MaskCount | EveryBlock:
        """Return mask-count form (C) in the configured blocks."""
        last = None if self.config.after_end else end_id
        size = block if self.config.block == "every" else self._block(block)
        require(
            self.config.after_end or size is not None,
            "method.after-end false needs blocks; any-order masks have none",
        )
        if self.config.block != "every":
            return MaskCount(size, last)
        if size is None:
            raise ConfigError("method.block every needs blocks: give decoding.block")
        return EveryBlock(size, last)

    def scored_per_row(self, completion: int, decoding: DecodingConfig) -> int:
        """(B + 1) / 2, the mean number of masked positions of a block, in one block or in all of them."""
        block = decoding.block
        if self.config.block == "every" and block is not None:
            return -(-completion // block) * (block + 1) // 2
        return ((self._block(block) or completion) + 1) // 2

    def _block(self, decoder_block: int | None) -> int | None:
        chosen = self.config.block
        if isinstance(chosen, int):
            return chosen
        return decoder_block if chosen == "decoding" else None

    def loss(self, policy: Policy, states: MaskedStates, weights: Weights, phase: Phase) -> Loss:
        """Return the mean over the batch of (L_row / k) Σ_S w̄ CE(T_c ‖ π_θ), divided by the length."""
        row = states.row
        control = self.control_variate(states, weights, phase)
        scored = _Scored(
            policy.rows(states),
            policy.rows_a(states),
            states.x1,
            states.weight,
            weights.log_weight[row],
            control[row],
        )
        size = max(1, (self.held or HELD) // policy.student.vocab_size)
        if len(row) <= size:
            return self._part(policy, scored, states, phase)
        parts = [
            checkpoint(
                self._part,
                policy,
                scored.select(slice(start, start + size)),
                states,
                phase,
                use_reentrant=False,
            )
            for start in range(0, len(row), size)
        ]
        metrics = {
            name: torch.stack([part.metrics[name] for part in parts]).sum() for name in parts[0].metrics
        }
        return Loss(torch.stack([part.value for part in parts]).sum(), metrics)

    def _part(self, policy: Policy, scored: _Scored, states: MaskedStates, phase: Phase) -> Loss:
        """Return the contribution of some of the scored positions to the loss."""
        log_pi = policy.student.log_pi(scored.student)
        with torch.no_grad():
            log_pi_a = policy.teacher.log_pi(scored.teacher)
            x1 = scored.x1[:, None]
            log_ratio = (log_pi.gather(-1, x1) - log_pi_a.gather(-1, x1)).squeeze(-1)
            gain = losses.advantage(scored.log_weight, scored.control)
            bound = phase.step * phase.reward_range
            keep = (
                losses.within_ratio_bound(log_ratio, gain, bound)
                if self.config.guard
                else torch.ones_like(gain).bool()
            )
        position_loss = losses.c_dtm_cross_entropy(
            log_pi, log_pi_a, scored.x1, scored.log_weight, scored.control, keep
        )
        value = (scored.row_weight / states.batch_rows * position_loss).sum() / states.length
        return Loss(value, _metrics(log_pi.detach(), log_pi_a, scored, states, keep))


def find_control_variate(name: str) -> ControlVariate:
    """Return a control variate by name, or a user's own as module:function."""
    if ":" in name:
        return load_object(name, "control variate")
    require(
        name in CONTROL_VARIATES,
        f"method.control-variate: no {name!r}. {nearest(name, CONTROL_VARIATES)} Or module:function.",
    )
    return CONTROL_VARIATES[name]


@dataclass(frozen=True, slots=True)
class _Scored:
    """The scored positions: hidden states of student and π_a, and the loss's inputs at each."""

    student: Float[Tensor, "N D"]
    teacher: Float[Tensor, "N D"]
    x1: Int[Tensor, " N"]
    row_weight: Float[Tensor, " N"]
    log_weight: Float[Tensor, " N"]
    control: Float[Tensor, " N"]

    def select(self, part: slice) -> _Scored:
        """Some of the positions."""
        return _Scored(*(getattr(self, name)[part] for name in self.__slots__))


@torch.no_grad()
def _metrics(
    log_pi: Float[Tensor, "N V"],
    log_pi_a: Float[Tensor, "N V"],
    scored: _Scored,
    states: MaskedStates,
    keep: Bool[Tensor, " N"],
) -> dict[str, Tensor]:
    """Return contributions to batch means: nats gained, guard hits, and the two sums of adaptive c."""
    scale = scored.row_weight / states.batch_rows
    weight = scored.log_weight.exp()
    numerator, denominator = losses.control_moments(log_pi.exp(), log_pi_a.exp(), scored.x1, weight)
    # The gradient of a row carries its weight L/k, so its variance carries the square.
    squared = scored.row_weight.square() / states.batch_rows
    share = scale / states.length
    return {
        "gained": (scale * losses.gained_kl(log_pi, log_pi_a, scored.x1, scored.log_weight)).sum(),
        "guarded": (share * ~keep).sum(),
        "control": (share * scored.control).sum(),
        "control_numerator": (squared * numerator).sum(),
        "control_denominator": (squared * denominator).sum(),
    }
