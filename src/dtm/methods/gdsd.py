"""GDSD (arXiv 2605.29398): regress the log-ratio of each completion on its tilted reward."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, final

from jaxtyping import Bool, Float, Int
from torch import Tensor

from dtm.config import DecodingConfig, IteratingConfig
from dtm.config.method import Preset
from dtm.config.rules import AT_LEAST_ONE, NOT_NEGATIVE, POSITIVE, check_fields
from dtm.errors import require
from dtm.masking import Coupled, Masking, Planned
from dtm.methods.advantages import leave_one_out, log_partition
from dtm.methods.base import Changes, Method
from dtm.methods.ratios import k2
from dtm.methods.surrogates import by_sequence, pair_bounds
from dtm.models.policy import Policy
from dtm.records import Loss, MaskedStates, Phase, Weights


@dataclass(frozen=True, kw_only=True, slots=True)
class GDSDConfig(IteratingConfig):
    """GDSD: squared distance of the log-ratio to π_a from a target ψA; no ratio is exponentiated."""

    name: str = "gdsd"
    preset: Preset = "fixed"
    """published: the target is per token and out of reach of a clamp on the summed log-ratio, masks have no
    weights, squares are summed over masks, and what follows the end is scored."""
    updates: int = 8
    """μ, the number of updates per set of rollouts."""
    psi: float = 1.0
    """ψ, tilt per iteration: π_θ aims at π_a e^{ψr}. Published: 10, per token, for GSM8K and MATH."""
    draws: int = 2
    """n_mc, pairs of complementary masks per completion; fixed needs at least 2."""
    epsilon: float | None = None
    """ε: a log-ratio beyond log(1 ± ε) has no gradient. None: 0.2 per token; published: 4e-4 of the sum."""
    beta: float = 1e-3
    """β, weight of the k2 divergence from π_0; 0: none, and no π_0 to keep. Published: 1e-4 for MATH."""
    baseline: Literal["log-partition", "loo"] | None = None
    """Baseline subtracted from r: (1/ψ) log of the mean e^{ψr} of the others, or their mean r. None:
    log-partition; published: loo."""

    def __post_init__(self) -> None:
        check_fields(
            "method", self, updates=AT_LEAST_ONE, psi=POSITIVE, draws=AT_LEAST_ONE, beta=NOT_NEGATIVE
        )
        require(
            self.epsilon is None or 0 < self.epsilon < 1,
            f"method.epsilon must lie in (0, 1), got {self.epsilon}",
        )
        require(
            self.preset == "published" or self.draws > 1,
            "method.draws must be at least 2: the fixed preset multiplies residuals of different masks. "
            "Pass --method.draws 2, or --method.preset published",
        )


def clamped(log_ratio: Float[Tensor, "*B"], epsilon: float) -> Float[Tensor, "*B"]:
    """The log-ratio within log(1 − ε) … log(1 + ε); no gradient outside."""
    return log_ratio.clamp(math.log1p(-epsilon), math.log1p(epsilon))


def cross_square(value: Float[Tensor, "S J"]) -> Float[Tensor, " S"]:
    r"""Mean over j ≠ j' of v_j v_j': unbiased for (E v)² if the J > 1 values of a row are independent.

    The mean of v_j² would add the variance over the masks, which the student can lower by other means than
    reaching the target: its minimiser is not the tilted law (claim F1d).
    """
    count = value.shape[1]
    return (value.sum(1).square() - value.square().sum(1)) / (count * (count - 1))


@final
class GDSD(Method):
    r"""(1/N) Σ_i (1/n_i) [ (Δ_i − ψA_i)² + β ½ (S_θ − S_0)_i² ],  Δ = S_θ − S_a,  ψA_i = ψ r_i − log Ẑ.

    S is the evidence bound from n_mc pairs of coupled masks (`Coupled`), the same for all policies; squares
    are products of different pairs (`cross_square`). The loss is 0 at π_a e^{ψr}/Z, DTM's law for h = ψ.
    """

    Config = GDSDConfig
    config: GDSDConfig
    knobs: ClassVar[tuple[Changes, ...]] = ({"psi": 0.3}, {"psi": 3.0})

    @property
    def reads_base(self) -> bool:
        """Whether the loss needs π_0: for the divergence, if β > 0."""
        return self.config.beta > 0

    @property
    def published(self) -> bool:
        """Whether the loss is that of the released code."""
        return self.config.preset == "published"

    @property
    def rows_per_rollout(self) -> int:
        """Rows per rollout: two masks per pair."""
        return 2 * self.config.draws

    def scored_per_row(self, completion: int, decoding: DecodingConfig) -> int:
        """Scored positions per row: half of the completion, since a pair scores each position once."""
        return (completion + 1) // 2

    def credit(self, reward: Float[Tensor, " N"], group: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
        """A_i, with the mean reward or the log-partition function of the others as baseline."""
        baseline = self.config.baseline or ("loo" if self.published else "log-partition")
        if baseline == "loo":
            return leave_one_out(reward, group)
        return log_partition(reward, group, self.config.psi)

    def masks(self, block: int | None, end_id: int) -> Masking:
        """Return pairs of complementary masks, independent where `cross_square` multiplies them."""
        plan = Coupled(self.config.draws, weighted=not self.published, spread=self.published)
        return Planned(plan, None if self.published else end_id)

    def loss(self, policy: Policy, states: MaskedStates, weights: Weights, phase: Phase) -> Loss:
        """Return the loss, summed over sequences, divided by those of the batch."""
        config, share = self.config, states.draws / states.batch_rows
        length = by_sequence(states.row_length, states)[:, :1]
        bound = pair_bounds(policy.log_pi(states), states)
        change = bound - pair_bounds(policy.log_pi_a(states), states)
        squares, cut = self._squares(change, config.psi * weights.credit[:, None], length)
        value, metrics = share * squares.sum(), {"clipped": share * cut.float().mean(1).sum()}
        if config.beta > 0:
            divergence = share * self._divergence(
                bound - pair_bounds(policy.log_pi_0(states), states), length
            )
            value, metrics["kl"] = value + config.beta * divergence, divergence.detach()
        return Loss(value, metrics)

    def _squares(
        self, change: Float[Tensor, "S J"], target: Float[Tensor, "S 1"], length: Int[Tensor, "S 1"]
    ) -> tuple[Float[Tensor, " S"], Bool[Tensor, "S J"]]:
        """Return the squared distance of each sequence from its target, and where the clamp is active."""
        if self.published:
            held = clamped(change, self.config.epsilon or 4e-4)
            return (held / length - target).square().sum(1), held != change
        by_token = change / length
        held = clamped(by_token, self.config.epsilon or 0.2)
        return cross_square(held * length - target) / length[:, 0], held != by_token

    def _divergence(self, gap: Float[Tensor, "S J"], length: Int[Tensor, "S 1"]) -> Float[Tensor, ""]:
        """Σ_i ½ (S_θ − S_0)² / n_i, by the mean of squares as published or by products of different masks."""
        if self.published:
            return (k2(gap) / length).mean(1).sum()
        return (cross_square(gap) / 2 / length[:, 0]).sum()
