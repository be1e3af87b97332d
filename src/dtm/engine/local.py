"""The engine in this process: the model is called directly, batch by batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import final

from dtm.engine.decoder import Decoder
from dtm.engine.generation import generate
from dtm.errors import require
from dtm.models.denoiser import Denoiser, heard_by
from dtm.records import Completions, Cost, Prompts


@final
class LocalEngine:
    """A `RolloutEngine` that calls `generate` in this process.

    Args:
        decoder: settings of decoding.
        length: tokens of a completion.
        batch: rows decoded together.
        between: called every few decoding steps; may raise to stop.
    """

    def __init__(
        self, decoder: Decoder, length: int, batch: int, between: Callable[[], None] = lambda: None
    ) -> None:
        self.decoder, self.length, self.batch, self.between = decoder, length, batch, between
        self._model: Denoiser | None = None
        self._tokens, self._flops = 0, 0

    def load(self, model: Denoiser) -> None:
        """Set the model that draws; it is not copied."""
        self.decoder.require_model(model)
        self._model = model

    def generate(
        self, prompts: Prompts, completions: int, seed: int, rows: Sequence[int] | None = None
    ) -> Completions:
        """Complete each prompt ``completions`` times, or draw only some of these rows.

        Its passes are counted here, and by no other listener of the model.
        """
        model = self._model
        require(model is not None, "no model is loaded: call engine.load(model) first")
        assert model is not None
        with heard_by(self._count, model):
            return generate(
                model,
                prompts,
                self.length,
                self.decoder,
                seed=seed,
                completions=completions,
                batch=self.batch,
                rows=rows,
                between=self.between,
            )

    def cost(self) -> Cost:
        """Return the tokens and FLOPs of its passes since the last call."""
        cost = Cost(tokens=self._tokens, flops=self._flops)
        self._tokens, self._flops = 0, 0
        return cost

    def _count(self, model: Denoiser, computed: int, attended: int, scored: int, trained: bool) -> None:
        self._tokens += computed
        self._flops += model.flops(computed, attended, scored)
