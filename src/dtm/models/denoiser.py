"""The interface of every model: hidden states at all positions, logits only at requested ones.

``[B, L, V]`` is never computed: callers name the positions they need, and the head runs on those rows only.
The mask token is never predicted; its logit is excluded before the softmax.
"""

from __future__ import annotations

import functools
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from dtm.errors import ConfigError
from dtm.models.linears import Linear

EXCLUDED = -1e9
"""Logit of the mask token: zero probability, yet finite, so that 0 · log 0 is 0 and not nan."""


@functools.cache
def fused(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Compile a function; all models and batch sizes share the result."""
    # The compiler's remark on how it splits a softmax: nothing that a user could change.
    warnings.filterwarnings("ignore", message=r"\s*Online softmax is disabled", category=UserWarning)
    return torch.compile(function, dynamic=True)


PassListener = Callable[["Denoiser", int, int, int, bool], None]
"""Function of a pass: the model, the numbers of positions computed, attended to by each of them, and scored
by the head, and whether a backward pass follows."""


class Denoiser(nn.Module, ABC):
    """π_θ(v | x_t, i): a model of the clean token at each masked position."""

    vocab_size: int
    mask_id: int
    eos_id: int
    shift: int = 0
    """0: the state at position i predicts token i (LLaDA); 1: the state at i − 1 does (Dream)."""
    attention_block: int | None = None
    """B of block-causal attention: a position attends to its own block and to earlier ones. None: full
    attention."""
    block_origin: Literal["column", "token"] = "column"
    """Origin of the count of blocks: a row's first column, so that completions start a block; or its first
    token, so that a prompt may end inside a block."""
    fp8: bool = False
    """Whether its linear layers are in eight bits; it then only approximates the model it was made from."""
    compiled: bool = False
    """Whether its passes are compiled by torch.compile."""
    family: str = "native"
    """Family of checkpoints whose module names adapters and exports use."""
    on_pass: PassListener | None = None
    """Called for every pass."""

    @abstractmethod
    def hidden(
        self, tokens: Int[Tensor, "B L"], attention: Bool[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "B L D"]:
        """Final hidden states. A padded batch gives the same numbers as its unpadded rows."""

    def hidden_at(
        self, tokens: Int[Tensor, "B L"], attention: Bool[Tensor, "B L"] | None, at: Int[Tensor, " N"]
    ) -> Float[Tensor, "N D"]:
        """Final hidden states at flat positions; override to skip unused positions."""
        return self.hidden(tokens, attention).flatten(0, 1).index_select(0, at)

    def hidden_doubled(
        self,
        tokens: Int[Tensor, "B L"],
        clean: Int[Tensor, "B L"],
        attention: Bool[Tensor, "B L"] | None,
        at: Int[Tensor, " N"],
    ) -> Float[Tensor, "N D"]:
        """Final hidden states that predict flat positions of x_t, each given the clean blocks before its own.

        One pass over x_t and x_1 side by side; only models with block-causal attention have it.
        """
        raise ConfigError(
            f"a {type(self).__name__} with full attention has no pass over x_t and x_1 side by side: every "
            "state would see the clean tokens. Mask one block at a time (`MaskCount`)."
        )

    @abstractmethod
    def head(self, rows: Float[Tensor, "N D"]) -> Float[Tensor, "N W"]:
        """Logits of chosen hidden states; columns beyond the vocabulary are ignored."""

    def forward(
        self,
        tokens: Int[Tensor, "B L"],
        attention: Bool[Tensor, "B L"] | None,
        where: Bool[Tensor, "B L"] | Int[Tensor, " N"],
        head: bool = True,
        clean: Int[Tensor, "B L"] | None = None,
    ) -> Float[Tensor, "N V"]:
        """Log π_θ, in float32 or better, at the positions ``where``: a mask, or its flat indices.

        Indices avoid a synchronisation with the device. Without the ``head`` it returns the hidden states
        that predict these positions, so that `log_pi` can be applied to parts of them. With ``clean``, x_1,
        each position is predicted given x_t in its own block and x_1 in the blocks before it.
        """
        positions = where.flatten().nonzero().squeeze(1) if where.dtype == torch.bool else where
        computed = tokens.numel()
        if clean is None:
            rows = predictors(positions, attention, tokens.shape, self.shift)
            states = self.hidden_at(tokens, attention, rows)
        else:
            states = self.hidden_doubled(tokens, clean, attention, positions)
            computed *= 2
        self.report_pass(computed, tokens.shape[1], len(positions), states.requires_grad)
        return self.log_pi(states) if head else states

    def log_pi(self, rows: Float[Tensor, "N D"]) -> Float[Tensor, "N V"]:
        """Log π_θ, in float32 or better, from chosen hidden states."""
        return log_distribution(self.head(rows), self.vocab_size, self.mask_id)

    def log_prob(self, rows: Float[Tensor, "N D"], x1: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
        """Log π_θ of one token at each of the chosen hidden states; compiled, it keeps no distribution."""
        measure = fused(log_prob) if self.compiled else log_prob
        return measure(self.head(rows), x1, self.vocab_size, self.mask_id)

    def linears(self) -> tuple[Linear, ...]:
        """Linear layers that adapters, quantisation and estimates may use; none by default."""
        return ()

    def flops(self, computed: int, attended: int, scored: int) -> int:
        """Floating-point operations of a forward pass; by default two per weight and computed position."""
        return 2 * computed * sum(parameter.numel() for parameter in self.parameters())

    def report_pass(self, computed: int, attended: int, scored: int, trained: bool = False) -> None:
        """Call ``on_pass``; needed only after calling ``hidden`` or ``head`` directly."""
        if self.on_pass is not None:
            self.on_pass(self, computed, attended, scored, trained)


@contextmanager
def heard_by(listener: PassListener | None, *models: Denoiser) -> Iterator[None]:
    """Context in which passes of the models are reported to a listener alone."""
    usual = [model.on_pass for model in models]
    for model in models:
        model.on_pass = listener
    try:
        yield
    finally:
        for model, before in zip(models, usual, strict=True):
            model.on_pass = before


def log_distribution(logits: Float[Tensor, "N W"], vocab_size: int, mask_id: int) -> Float[Tensor, "N V"]:
    """Log-softmax over the vocabulary, in float32 or better, with the mask token excluded."""
    return _allowed(logits, vocab_size, mask_id).log_softmax(-1)


def log_prob(
    logits: Float[Tensor, "N W"], x1: Int[Tensor, " N"], vocab_size: int, mask_id: int
) -> Float[Tensor, " N"]:
    """`log_distribution` at one token of each row."""
    return -F.cross_entropy(_allowed(logits, vocab_size, mask_id), x1, reduction="none")


def _allowed(logits: Float[Tensor, "N W"], vocab_size: int, mask_id: int) -> Float[Tensor, "N V"]:
    """Logits of the vocabulary in float32 or better, with the mask token excluded."""
    logits = logits[:, :vocab_size].to(torch.promote_types(logits.dtype, torch.float32))
    logits[:, mask_id] = EXCLUDED
    return logits


def predictors(
    positions: Int[Tensor, " N"], attention: Bool[Tensor, "B L"] | None, shape: torch.Size, shift: int
) -> Int[Tensor, " N"]:
    """The flat index of the hidden state that predicts each position.

    With a shift, a row's first real token has no state before it and is predicted from its own state. A
    padded row gives the same result as the unpadded one.
    """
    if shift == 0:
        return positions
    preceded = torch.zeros(shape, dtype=torch.bool, device=positions.device)
    preceded[:, shift:] = True if attention is None else attention[:, :-shift]
    return positions - shift * preceded.flatten()[positions]
