"""AGRPO (arXiv 2510.04019): the policy gradient of the decoder's own steps, a few of them drawn at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from jaxtyping import Float, Int
from torch import Tensor

from dtm.config import DecodingConfig, IteratingConfig
from dtm.config.method import Preset
from dtm.config.rules import AT_LEAST_ONE, BETWEEN_0_AND_1, POSITIVE, Rule, check_fields
from dtm.errors import require
from dtm.masking import Masking, Planned, SampledSteps
from dtm.methods.advantages import ADVANTAGES, AdvantageName
from dtm.methods.base import Changes, Method
from dtm.methods.grpo import clipped_tokens
from dtm.methods.surrogates import by_sequence, token_scores
from dtm.models.policy import Policy
from dtm.records import Loss, MaskedStates, Phase, Weights

POSITIVE_SHARE: Rule = (lambda value: 0 < value <= 1, "lie in (0, 1]")


@dataclass(frozen=True, kw_only=True, slots=True)
class AGRPOConfig(IteratingConfig):
    """AGRPO: token ratios at some of the states that the decoder went through, importance-weighted."""

    name: str = "agrpo"
    preset: Preset = "fixed"
    """published: the mean over a completion's decoding steps instead of the sum."""
    updates: int = 1
    """μ, the number of updates per set of rollouts."""
    steps: int = 24
    """Decoding steps drawn per completion; each is a row."""
    even: float = 0.2
    """Share of the draws that is uniform over the steps; the rest is in proportion to −log π_a of a step's
    tokens (published: to the entropy). 1: all uniform."""
    temperature: float = 1.0
    """Temperature at which log π is computed; must equal decoding.temperature."""
    epsilon: float = 0.2
    """ε, clip range of a ratio around 1."""
    advantage: AdvantageName = "mean"
    """A: reward less the group's mean, its z-score, or less the mean of the others."""

    def __post_init__(self) -> None:
        check_fields(
            "method",
            self,
            updates=AT_LEAST_ONE,
            steps=AT_LEAST_ONE,
            even=POSITIVE_SHARE,
            temperature=POSITIVE,
            epsilon=BETWEEN_0_AND_1,
        )


@final
class AGRPO(Method):
    r"""−(1/(N L)) Σ_i (1/M) Σ_s (1/p_s) Σ_{k revealed at s} min(ρ A_i, clip(ρ, 1−ε, 1+ε) A_i),  s ~ p.

    ρ = π_θ/π_a at the state before step s (`SampledSteps`), at the decoder's temperature. Its mean over the
    draws is the sum over all steps, so that with a random order of decoding the gradient is that of E[r];
    where the order follows the model's confidence, the order's own dependence on θ is left out.
    """

    Config = AGRPOConfig
    config: AGRPOConfig
    knobs: ClassVar[tuple[Changes, ...]] = ({"updates": 4}, {"steps": 8})

    @property
    def rows_per_rollout(self) -> int:
        """Rows per rollout: the drawn steps."""
        return self.config.steps

    def scored_per_row(self, completion: int, decoding: DecodingConfig) -> int:
        """The tokens that one decoding step revealed."""
        return decoding.most_per_step(completion)

    def check_decoding(self, decoding: DecodingConfig) -> None:
        """Raise an error for a decoder of another temperature, whose tokens have another likelihood."""
        require(
            decoding.temperature > 0,
            f"{self.config.name} needs the likelihood of sampled tokens, and decoding.temperature 0 samples "
            "none: add --decoding.temperature 1",
        )
        own = self.config.temperature
        require(
            own == decoding.temperature,
            f"{self.config.name} scores tokens at method.temperature {own:g}, and they are drawn at "
            f"decoding.temperature {decoding.temperature:g}. Give both the same value: --method.temperature "
            f"{decoding.temperature:g} (in dtm compare: --set {self.config.name}.temperature="
            f"{decoding.temperature:g})",
        )

    def credit(self, reward: Float[Tensor, " N"], group: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
        """A_i."""
        return ADVANTAGES[self.config.advantage](reward, group)

    def masks(self, block: int | None, end_id: int) -> Masking:
        """Return states that the decoder went through."""
        published = self.config.preset == "published"
        return Planned(SampledSteps(self.config.steps, self.config.even, mean=published), end_id)

    def loss(self, policy: Policy, states: MaskedStates, weights: Weights, phase: Phase) -> Loss:
        """Return the loss per sequence of the batch, divided by the length unless as published."""
        score = self._scores(policy.log_pi(states), states)
        # With one update per iteration the student is π_a, so its own scores replace a pass of π_a.
        on_policy = self.config.updates == 1
        old = score.detach() if on_policy else self._scores(policy.log_pi_a(states), states)
        share = by_sequence(states.row_weight[:, None] * states.eligible, states) / states.batch_rows
        if self.config.preset == "fixed":
            share = share / states.length
        return clipped_tokens(policy, states, score, share, weights.credit, self.config.epsilon, old=old)

    def _scores(self, log_pi: Float[Tensor, "N V"], states: MaskedStates) -> Float[Tensor, "S M L"]:
        """Return log π of each scored token at the decoder's temperature."""
        tempered = (
            log_pi if self.config.temperature == 1 else (log_pi / self.config.temperature).log_softmax(-1)
        )
        return token_scores(tempered, states)
