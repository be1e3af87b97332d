"""The interface of a method: how rewards become updates of the student.

A method is one file with its settings (`Config`), the credit it gives to rewards, the masks it trains on, its
loss, and the settings that `dtm compare --tune` tries. Its outer loop is one of two (`dtm.loop`):

    anneal     tilt by h, train until the tilt is absorbed, π_a ← π_θ, repeat up to A
    iterate    draw rollouts of π_a, take a few updates on them, π_a ← π_θ, repeat
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from jaxtyping import Float, Int
from torch import Tensor

from dtm.config import DecodingConfig, IteratingConfig, MethodConfig, RunConfig
from dtm.losses import AdaptiveControl
from dtm.masking import Masking, MaskPlan
from dtm.methods.advantages import centred
from dtm.models.policy import Policy
from dtm.records import Loss, MaskedStates, Phase, Weights

Changes = Mapping[str, Any]
"""Changed fields of a configuration; names outside its sections are the method's own fields."""


class Method(ABC):
    """A method; derive from it, set `Config`, and write `masks` and `loss`; override `credit` if needed.

    π_a is the model that drew the rollouts ("old"), π_0 the base ("reference").
    """

    Config: ClassVar[type[MethodConfig]] = MethodConfig
    """The settings, a frozen dataclass; its fields are flags, ``--method.FIELD``."""
    loop: ClassVar[Literal["anneal", "iterate"]] = "iterate"
    pairs: ClassVar[bool] = False
    """Whether a batch consists of pairs (credits +1 and −1) in adjacent rows, which must stay together."""
    held: int | None = None
    """Largest number of logits that the loss holds at a time; None: those of all scored positions."""
    knobs: ClassVar[tuple[Changes, ...]] = ()
    """Settings that `dtm compare --tune` tries in addition to the defaults."""

    def __init__(self, config: MethodConfig | None = None) -> None:
        self.config = self.Config() if config is None else config

    @property
    def updates(self) -> int:
        """μ, updates per iteration; read by the iterating loop."""
        return self.config.updates if isinstance(self.config, IteratingConfig) else 1

    @property
    def reads_base(self) -> bool:
        """Whether the loss reads π_0; it is then kept in memory."""
        return False

    @property
    def ratio_plan(self) -> MaskPlan | None:
        """Masks under which log π_0/π_a of new rollouts is measured once; `credit` then receives it.

        None: it is not measured. Needs `reads_base`.
        """
        return None

    @property
    def scores_first(self) -> bool:
        """Whether credits depend on the student's scores of whole groups; an update then has two passes.

        The first scores every sequence of the batch without gradient (`score`); `reweigh` computes the
        credits from the scores, independently of micro-batches.
        """
        return False

    @property
    def prompt_baseline(self) -> bool:
        """Whether weights e^{h(r − b)} subtract b, the mean reward of the prompt's other completions."""
        return False

    @property
    def rows_per_rollout(self) -> int:
        """Masked states per rollout in an update; for estimates of time and memory."""
        return 1

    def scored_per_row(self, completion: int, decoding: DecodingConfig) -> int:
        """Mean number of scored positions of a masked state; for estimates of memory."""
        return completion

    @property
    def unit(self) -> int:
        """Number of adjacent sequences that must stay in one micro-batch."""
        return 2 if self.pairs else 1

    def sequences_together(self, rows: int, draws: int) -> int:
        """Return how many sequences, with ``draws`` masked states each, fit ``rows``; at least one unit."""
        return max(rows // (draws * self.unit), 1) * self.unit

    def check_decoding(self, decoding: DecodingConfig) -> None:
        """Raise an error or warn if the law of the rollouts is not the one that the loss assumes."""
        return

    def new_control(self) -> AdaptiveControl:
        """Return a new running estimate of the best control variate, for the start of a phase."""
        return AdaptiveControl()

    def neutral_weight(self, log_z: float) -> float:
        """Return w̄ of a rollout without gradient; the buffer draws other rollouts more often."""
        return 1.0

    def tuning(self, config: RunConfig) -> tuple[Changes, ...]:
        """Return settings to try besides ``config`` in `dtm compare --tune`; override to derive them."""
        return self.knobs

    def credit(self, reward: Float[Tensor, " N"], group: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
        """Return A_i of every rollout of a buffer; by default the reward minus the mean of its group."""
        return centred(reward, group)

    def score(self, policy: Policy, states: MaskedStates) -> Float[Tensor, " S"]:
        """Return a score per sequence under the current student; used if `scores_first`."""
        raise NotImplementedError(f"{type(self).__name__} scores first: override score and reweigh")

    def reweigh(self, weights: Weights, score: Float[Tensor, " S"]) -> Weights:
        """Return the weights of a batch, with credits computed from the scores of all its sequences."""
        raise NotImplementedError(f"{type(self).__name__} scores first: override score and reweigh")

    @abstractmethod
    def masks(self, block: int | None, end_id: int) -> Masking:
        """Return the masking; ``block`` is the decoder's, ``end_id`` ends a completion."""

    @abstractmethod
    def loss(self, policy: Policy, states: MaskedStates, weights: Weights, phase: Phase) -> Loss:
        """Return the loss of some sequences of a batch, differentiable in the student's parameters.

        ``weights`` has a row per sequence, ``states`` one per draw. Normalise by the whole batch
        (``states.batch_rows``, ``states.batch_length``): the losses of micro-batches must add up.
        """
