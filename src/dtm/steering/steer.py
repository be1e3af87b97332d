"""Steer a model with a reward while it samples: best-of-n, SMC, and Gibbs sweeps of conditional SMC."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dtm.engine.decoder import Decoder
from dtm.engine.generation import masked_rows
from dtm.errors import ConfigError, require
from dtm.models.denoiser import Denoiser
from dtm.random import derived_seed
from dtm.records import Completions, Prompts
from dtm.steering.best_of import complete
from dtm.steering.particles import Particles
from dtm.steering.proposal import require_ratio
from dtm.steering.sampler import Effort, Judge, Sampler
from dtm.steering.smc import Sweep
from dtm.steering.values import Values, build_values
from dtm.steering.weights import multinomial, uniforms


@dataclass(frozen=True, kw_only=True, slots=True)
class BestOf:
    """Best-of-n: n independent completions per prompt."""

    n: int
    tilt: float | None = None
    """None: answer with the highest reward. a: draw the answer in proportion to e^{a r} (soft best-of-n)."""

    def __post_init__(self) -> None:
        require(self.n >= 1, f"best-of-n needs at least 1 completion, got {self.n}")
        require_tilt(self.tilt)

    @property
    def name(self) -> str:
        """As it is written in tables and flags."""
        return f"best-of-{self.n}"


@dataclass(frozen=True, kw_only=True, slots=True)
class SMC:
    """Sequential Monte Carlo with n particles per prompt, resampled at block ends."""

    n: int
    tilt: float
    """a of the law ρ_dec e^{a r}."""
    values: str | Values = "one-shot"
    """Estimator of the value of an unfinished row: one-shot, greedy, rollout, or a function."""
    draws: int = 4
    """Completions per estimate."""
    sweeps: int = 0
    """Number of sweeps of conditional SMC (particle Gibbs) after the first pass."""
    threshold: float = 0.5
    """Resample if the effective share of the particles is below this; 0: never, 1: almost always."""
    resampling: str = "systematic"
    """Resampling of the first pass: systematic or multinomial; conditional SMC is multinomial."""

    def __post_init__(self) -> None:
        require(self.n >= 1, f"SMC needs at least 1 particle, got {self.n}")
        require_tilt(self.tilt)
        require(self.sweeps >= 0, f"--gibbs must not be negative, got {self.sweeps} sweeps")
        require(
            self.n >= 2 or self.sweeps == 0,
            "--gibbs needs at least 2 particles, since one holds the path of the last sweep: use --smc 2",
        )
        require(0 <= self.threshold <= 1, f"the threshold is a share in [0, 1], got {self.threshold:g}")
        require(
            self.resampling in ("systematic", "multinomial"),
            f"resampling is systematic or multinomial, got {self.resampling!r}",
        )
        if isinstance(self.values, str):
            build_values(self.values, self.draws)

    @property
    def name(self) -> str:
        """As it is written in tables and flags."""
        return f"smc-{self.n}" + (f"-gibbs-{self.sweeps}" if self.sweeps else "")


Steering = BestOf | SMC


def require_tilt(tilt: float | None) -> None:
    """Raise an error for a tilt that is negative or not a number; a negative one would seek low rewards."""
    require(
        tilt is None or 0 <= tilt < torch.inf,
        f"the tilt a must be a number that is not negative, got {tilt}: negate the reward to seek low ones",
    )


def parse_steering(text: str, tilt: float | None) -> Steering:
    """Parse ``best-of-16`` or ``smc-16`` into its settings; SMC takes the ``tilt``.

    >>> parse_steering("best-of-16", None)
    BestOf(n=16, tilt=None)
    """
    kind, _, number = text.strip().rpartition("-")
    if kind not in ("best-of", "smc") or not number.isdecimal():
        raise ConfigError(f"no steering {text!r}: write best-of-N or smc-N, for example best-of-16,smc-16")
    if kind == "best-of":
        return BestOf(n=int(number))
    if tilt is None:
        raise ConfigError(f"{text} draws from the law tilted by e^(a r): give a with --tilt A")
    return SMC(n=int(number), tilt=tilt)


@dataclass(frozen=True, slots=True)
class Steered:
    """N completions of each of P prompts with their weights, the answer to each prompt, and the cost."""

    method: Steering
    rows: Completions
    """M = P·N rows; those of a prompt are adjacent."""
    reward: Float[Tensor, " M"]
    """Reward of each completion; nan without a reward."""
    weight: Float[Tensor, "P N"]
    """Weights, which sum to 1 per prompt; equal for best-of-n without a tilt."""
    log_z: Float[Tensor, " P"]
    """log Ẑ, an estimate of log E[e^{a r}]; Ẑ is unbiased."""
    drawn: Int[Tensor, " P"]
    """Row per prompt, drawn in proportion to its weight."""
    best: Int[Tensor, " P"]
    """Row per prompt with the highest reward."""
    effort: Effort

    @property
    def law(self) -> Literal["tilted", "best"]:
        """Law of the answer: "tilted", a draw in proportion to the weights, or "best", the highest reward."""
        return "best" if self.method.tilt is None else "tilted"

    @property
    def answer(self) -> Int[Tensor, " P"]:
        """Row per prompt that the method returns."""
        return self.best if self.law == "best" else self.drawn


@torch.no_grad()
def steer(
    model: Denoiser,
    prompts: Prompts | Int[Tensor, "P W"],
    length: int,
    method: Steering,
    judge: Judge,
    decoder: Decoder = Decoder(),  # noqa: B008, frozen
    *,
    seed: int = 0,
    batch: int = 256,
    target: Denoiser | None = None,
    between: Callable[[], None] = lambda: None,
) -> Steered:
    """Complete each prompt under a reward, without training.

    Results depend on the seed and on the number of a prompt, and not on ``batch``.

    Args:
        model: π, on the device of the prompts.
        prompts: P prompts, or their token ids.
        length: tokens of a completion.
        method: `BestOf` or `SMC`.
        judge: returns the rewards of finished rows, given the number of each row's prompt.
        decoder: decoder whose law is tilted. SMC resamples at the ends of its blocks.
        seed: seed of all draws.
        batch: rows decoded together.
        target: for SMC, the model whose law is tilted, if ``model`` is only the proposal.
        between: called before each batch of rows; may raise to stop.

    Example:
        >>> from dtm.models import Transformer, TransformerConfig
        >>> shape = TransformerConfig(vocab_size=9, mask_id=8, eos_id=0, width=8, layers=1, heads=2, ffn=8)
        >>> net = Transformer(shape, torch.Generator().manual_seed(0))
        >>> count_threes = lambda rows, prompts: (rows.written == 3).sum(1).tolist()
        >>> ask, blocks = torch.tensor([[1, 2]]), Decoder(block=2)
        >>> found = steer(net, ask, 6, SMC(n=8, tilt=2.0), count_threes, blocks)
        >>> found.rows.written[found.answer].tolist(), found.effort.forwards, found.effort.rewards
        ([[3, 6, 3, 5, 3, 3]], 64, 72)
    """
    require(batch >= 1, f"batch must be at least 1, got {batch}")
    require(
        decoder.temperature > 0,
        "decoding.temperature is 0, so that all completions of a prompt would be alike: steer with "
        "--temperature 1",
    )
    if target is not None:
        require(isinstance(method, SMC), "a separate target model is only for SMC: best-of-n has no proposal")
        require_ratio(decoder)
    sampler = Sampler(model, decoder, judge, batch, between, target)

    def canvas() -> Completions:
        return masked_rows(prompts, length, method.n, model)

    with sampler.counted():
        if isinstance(method, BestOf):
            particles = complete(sampler, canvas(), method.n, method.tilt or 0.0, seed)
        else:
            particles = _swept(sampler, canvas, method, seed)
    return _result(method, particles, sampler.effort, seed)


def _swept(sampler: Sampler, canvas: Callable[[], Completions], method: SMC, seed: int) -> Particles:
    """Run SMC, then Gibbs sweeps, each with a path drawn from the previous one; log Ẑ is from the first."""
    values = build_values(method.values, method.draws) if isinstance(method.values, str) else method.values
    sweep = Sweep(method.tilt, values, method.threshold, method.resampling)
    particles = sweep.run(sampler, canvas(), method.n, derived_seed(seed, "sweep", 0))
    log_z = particles.log_z
    for number in range(1, method.sweeps + 1):
        own = derived_seed(seed, "sweep", number)
        held = particles.path(drawn_rows(particles, own))
        particles = sweep.run(sampler, canvas(), method.n, own, held)
    return replace(particles, log_z=log_z)


def drawn_rows(particles: Particles, seed: int) -> Int[Tensor, " P"]:
    """Draw one row per prompt in proportion to its weight."""
    prompts, count = particles.log_weight.shape
    u = uniforms(seed, "answer", prompts, 0, 1, particles.log_weight.device)
    first = torch.arange(0, prompts * count, count, device=u.device)
    return first + multinomial(particles.log_weight, u).squeeze(1)


def _result(method: Steering, particles: Particles, effort: Effort, seed: int) -> Steered:
    prompts, count = particles.log_weight.shape
    reward = particles.reward.view(prompts, count)
    best = reward.nan_to_num(nan=-torch.inf).argmax(1)
    first = torch.arange(0, prompts * count, count, device=best.device)
    return Steered(
        method,
        particles.rows,
        particles.reward,
        particles.log_weight.softmax(1),
        particles.log_z,
        drawn_rows(particles, derived_seed(seed, "answer")),
        first + best,
        effort,
    )
