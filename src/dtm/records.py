"""The frozen records that flow between the stages; follow them to read the whole system.

    Prompts ──► Completions ──► Rollouts ──► Weights, MaskedStates ──► Loss

Letters: N rollouts, B rows of a batch, P prompt width, L full width (prompt and completion).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Rows = TypeVar("Rows", bound="Sequences")


@dataclass(frozen=True, slots=True)
class Prompts:
    """Prompts as tokens, and in the form that reward functions receive."""

    tokens: Int[Tensor, "N P"]
    """Token ids, padded on the left."""
    attention: Bool[Tensor, "N P"]
    """False on padding."""
    views: Sequence[Any]
    """Each prompt in the form that reward functions receive (text, messages, a pair of cells)."""
    columns: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    """Further columns of the data set, handed to the reward by name."""

    def __len__(self) -> int:
        return len(self.tokens)

    def select(self, rows: Sequence[int]) -> Prompts:
        """The prompts of the given rows, in that order; a row may be repeated."""
        index = torch.as_tensor(rows, dtype=torch.long, device=self.tokens.device)
        columns = {name: [values[row] for row in rows] for name, values in self.columns.items()}
        return Prompts(self.tokens[index], self.attention[index], [self.views[r] for r in rows], columns)

    def to(self, device: torch.device) -> Prompts:
        """The same prompts on another device."""
        return replace(self, tokens=self.tokens.to(device), attention=self.attention.to(device))

    def repeat(self, times: int) -> Prompts:
        """Each prompt ``times`` times in a row: a group of completions for every prompt."""
        return self.select([row for row in range(len(self)) for _ in range(times)])


@dataclass(frozen=True, slots=True)
class Sequences:
    """Clean sequences: training data, or finished completions."""

    tokens: Int[Tensor, "N L"]
    """Prompt, then completion."""
    attention: Bool[Tensor, "N L"]
    """False on the prompt's left padding."""
    is_completion: Bool[Tensor, "N L"]
    """True on the completion; only these positions are ever masked or scored."""

    def __len__(self) -> int:
        return len(self.tokens)

    def select(self: Rows, rows: slice | Sequence[int] | Int[Tensor, " B"] | Bool[Tensor, " N"]) -> Rows:
        """The given rows, in that order, or those where a mask is true; a row may be repeated."""
        if not isinstance(rows, slice | Tensor):
            rows = torch.as_tensor(rows, dtype=torch.long, device=self.tokens.device)
        return replace(self, **{name: tensor[rows] for name, tensor in self.tensors().items()})

    def to(self: Rows, device: torch.device) -> Rows:
        """The same rows on another device."""
        return replace(self, **{name: tensor.to(device) for name, tensor in self.tensors().items()})

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name, each with a row per sequence; without those that were not measured."""
        values = ((each.name, getattr(self, each.name)) for each in fields(self))
        return {name: value for name, value in values if isinstance(value, Tensor)}


@dataclass(frozen=True, slots=True)
class Completions(Sequences):
    """Finished sequences of an engine, not yet rewarded.

    Rows may be wider than prompt and completion: engines pad further on the left where blocks need it.
    """

    revealed_at: Int[Tensor, "N L"]
    """The decoding step that revealed each token; -1 on the prompt."""
    log_prob: Float[Tensor, "N L"]
    """log π of each token, at temperature 1, at the step that revealed it; 0 on the prompt and on end tokens
    that were filled in after an early end."""

    @property
    def written(self) -> Int[Tensor, "N C"]:
        """Return the completions without their prompts, cut to the length of the shortest."""
        first = self.is_completion.int().argmax(1, keepdim=True)
        width = int(self.is_completion.sum(1).min()) if len(self) else 0
        return self.tokens.gather(1, first + torch.arange(width, device=first.device))


@dataclass(frozen=True, slots=True)
class Rollouts(Completions):
    """Finished sequences x_1 ~ ρ_{1,a} and their rewards: all that the replay buffer stores."""

    reward: Float[Tensor, " N"]
    """r(x_1)."""
    group: Int[Tensor, " N"]
    """Equal for completions of one prompt."""
    tilt: float
    """The a of the π_a that drew them; the buffer refuses a mixture."""
    log_ratio: Float[Tensor, " N"] | None = None
    """An estimate of log π_0/π_a of each completion, for methods that weigh by it; None: not measured."""


@dataclass(frozen=True, slots=True)
class Weights:
    """The tilt of each rollout in log space, normalised so that the buffer's mean weight is 1."""

    log_weight: Float[Tensor, " N"]
    """log w̄ = h r − log Z."""
    peers: Float[Tensor, " N"]
    """Mean w̄ of the *other* completions of the same prompt; 1 for a prompt with a single one."""
    log_z: float
    """log Z, the log-mean-exp of h r over the buffer."""
    reward: Float[Tensor, " N"]
    """r(x_1)."""
    group: Int[Tensor, " N"]
    """Equal for completions of one prompt."""
    credit: Float[Tensor, " N"]
    """A_i, the method's credit from the rewards of the *whole* group (see `dtm.methods.advantages`), so that
    it does not depend on how a batch is split; 0 where the method does not use it."""

    def select(self, rows: slice | Int[Tensor, " B"]) -> Weights:
        """The weights of the given rollouts, on the same normalisation."""
        return replace(self, **{name: getattr(self, name)[rows] for name in WEIGHT_TENSORS})

    def to(self, device: torch.device) -> Weights:
        """The same weights on another device."""
        return replace(self, **{name: getattr(self, name).to(device) for name in WEIGHT_TENSORS})


WEIGHT_TENSORS = ("log_weight", "peers", "reward", "group", "credit")


@dataclass(frozen=True, slots=True)
class MaskedStates:
    """Partially masked x_t, and the clean x_1 they were masked from: the input of a loss."""

    tokens: Int[Tensor, "B L"]
    """x_t: the mask id at every masked position."""
    clean: Int[Tensor, "B L"]
    """x_1."""
    attention: Bool[Tensor, "B L"] | None
    """False on the prompt's left padding; None where there is none."""
    eligible: Bool[Tensor, "B L"]
    """S, the scored positions: masked, and in the active block."""
    row_weight: Float[Tensor, " B"]
    """L_row / k in form (C) of the objective: the factor on the row's sum over S. The mean over rows
    of ``row_weight · Σ_S ℓ`` is the hazard integral, in nats per sequence."""
    row_length: Int[Tensor, " B"]
    """L_row (n_i of policy-gradient methods): completion positions that count, all or those up to the end."""
    length: int
    """The longest completion; losses are divided by it, so gradient limits mean nats per token."""
    batch_rows: int
    """Rows of the whole batch; losses of its parts are divided by it, so that they add up."""
    batch_length: Int[Tensor, ""]
    """Sum of ``row_length`` over the whole batch, for losses that weight all tokens equally."""
    draws: int = 1
    """Rows of one sequence, next to each other: some methods mask a sequence several times."""
    position_weight: Float[Tensor, "B L"] | None = None
    """A further factor of each position, where positions of a row differ; None: 1."""
    doubled: bool = False
    """Whether each block is scored given the clean blocks before it, in one pass over [x_t ; x_1]."""
    scored: Int[Tensor, " N"] = field(init=False)
    """S as flat indices, row by row; finding them waits for the device, so it is done once."""
    row: Int[Tensor, " N"] = field(init=False)
    """The row of each of them."""
    x1: Int[Tensor, " N"] = field(init=False)
    """The clean token at each of them."""
    weight: Float[Tensor, " N"] = field(init=False)
    """The factor on the loss at each of them: ``row_weight``, times ``position_weight`` if there is one."""

    def __post_init__(self) -> None:
        scored = self.eligible.flatten().nonzero().squeeze(1)
        object.__setattr__(self, "scored", scored)
        object.__setattr__(self, "row", scored // self.eligible.shape[1])
        object.__setattr__(self, "x1", self.clean.flatten()[scored])
        weight = self.row_weight[self.row]
        if self.position_weight is not None:
            weight = weight * self.position_weight.flatten()[scored]
        object.__setattr__(self, "weight", weight)

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def sequences(self) -> int:
        """Sequences behind the rows."""
        return len(self) // self.draws

    @property
    def context(self) -> Int[Tensor, "B L"] | None:
        """x_1 where the model must be given it beside x_t; else None."""
        return self.clean if self.doubled else None

    def select(self, sequences: slice | Int[Tensor, " N"]) -> MaskedStates:
        """The states of the given sequences, each with all its draws."""
        rows = sequences if self.draws == 1 else self._rows(sequences)
        names: tuple[str, ...] = ("tokens", "clean", "eligible", "row_weight", "row_length")
        names += tuple(name for name in ("attention", "position_weight") if getattr(self, name) is not None)
        return replace(self, **{name: getattr(self, name)[rows] for name in names})

    def _rows(self, sequences: slice | Int[Tensor, " N"]) -> Int[Tensor, " M"]:
        grid = torch.arange(len(self), device=self.tokens.device).view(-1, self.draws)
        return grid[sequences].flatten()


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase a → a + h, as a loss sees it."""

    index: int
    """0 for the first phase."""
    tilt: float
    """a, the tilt of π_a."""
    step: float
    """h, the tilt added by this phase."""
    reward_range: float
    """max r − min r; bounds π_{a+h}/π_a by e^{±h·range}, which is the ratio guard."""
    control: float = 1.0
    """c̄*, the best constant control variate in closed form, from past batches alone."""


@dataclass(frozen=True, slots=True)
class Cost:
    """An amount of work, in the units of a budget."""

    seconds: float = 0.0
    """Wall-clock."""
    tokens: int = 0
    """Tokens that models processed, as a budget counts them."""
    flops: int = 0
    """Floating-point operations."""

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.seconds + other.seconds, self.tokens + other.tokens, self.flops + other.flops)


@dataclass(frozen=True, slots=True)
class Loss:
    """A scalar to differentiate and metrics to log."""

    value: Float[Tensor, ""]
    metrics: Mapping[str, Tensor]
    """Detached contributions to the batch's mean; those of micro-batches add up, like the value."""
