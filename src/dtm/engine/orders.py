"""Orders of decoding: rules that score masked positions; the highest scores are revealed first.

At one token per step, any rule that depends only on x_t samples ρ exactly: `Uniform` and
`MaxProbability` do. `SampledConfidence`, LLaDA's low-confidence remasking, ranks positions by the
token it has *just drawn*; that favours likely tokens and is biased even for independent positions
(docs/method.md, section 7).
"""

from __future__ import annotations

from typing import ClassVar, Protocol, final, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor


@runtime_checkable
class Order(Protocol):
    """Rule that scores each candidate position."""

    reads_posterior: ClassVar[bool]
    """Whether ``score`` uses the posterior; if not, the head runs only on the positions to reveal."""
    exact: ClassVar[bool]
    """Whether one token per step samples the model's own law."""

    def score(
        self, log_pi: Float[Tensor, "N V"], drawn: Int[Tensor, " N"], noise: Float[Tensor, " N"]
    ) -> Float[Tensor, " N"]:
        """Return scores of N candidates from their posterior, the tokens drawn there, and uniform noise."""
        ...


@final
class Uniform:
    """A uniformly random order [Algorithm 2]."""

    reads_posterior: ClassVar[bool] = False
    exact: ClassVar[bool] = True

    def score(
        self, log_pi: Float[Tensor, "N V"], drawn: Int[Tensor, " N"], noise: Float[Tensor, " N"]
    ) -> Float[Tensor, " N"]:
        """Return the noise as the score."""
        return noise


@final
class MaxProbability:
    """The position whose posterior has the highest peak: a function of x_t alone, hence exact."""

    reads_posterior: ClassVar[bool] = True
    exact: ClassVar[bool] = True

    def score(
        self, log_pi: Float[Tensor, "N V"], drawn: Int[Tensor, " N"], noise: Float[Tensor, " N"]
    ) -> Float[Tensor, " N"]:
        """Return the peak, log max_v π(v)."""
        return log_pi.amax(-1)


@final
class SampledConfidence:
    """LLaDA's rule: the position whose drawn token has the highest probability. Biased."""

    reads_posterior: ClassVar[bool] = True
    exact: ClassVar[bool] = False

    def score(
        self, log_pi: Float[Tensor, "N V"], drawn: Int[Tensor, " N"], noise: Float[Tensor, " N"]
    ) -> Float[Tensor, " N"]:
        """Return log π of the drawn token."""
        return log_pi.gather(-1, drawn[:, None]).squeeze(-1)


ORDERS: dict[str, type[Order]] = {
    "uniform": Uniform,
    "max-probability": MaxProbability,
    "sampled-confidence": SampledConfidence,
}
