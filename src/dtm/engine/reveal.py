"""One step of decoding: a forward pass, a draw at each candidate, and the choice of tokens to reveal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dtm.engine.blocks import Batch, Blocks, Row
from dtm.engine.decoder import Decoder
from dtm.engine.draws import Draws, draw
from dtm.engine.noise import candidate_keys, uniform
from dtm.engine.passes import Passes
from dtm.models.denoiser import Denoiser
from dtm.records import Completions


@dataclass(frozen=True, slots=True)
class Stepper:
    """Run decoding steps on batches of rows. Letters: S rows of a batch, B block size, C candidates."""

    model: Denoiser
    decoder: Decoder
    blocks: Blocks
    limits: Int[Tensor, "K T"]
    """`Blocks.table` on the device: tokens to reveal in each step."""
    passes: Passes

    def step(self, canvas: Completions, batch: Batch, rows: Sequence[Row], since: int) -> None:
        """Take one step in every row whose block has masked positions; write what it reveals to the canvas.

        ``rows`` are those of the batch, on the host, and are brought up to date; ``since`` is the number of
        steps since the batch was made. How many positions are masked is known on the host, so nothing waits
        for the device unless ``certainty`` asks how many are left.
        """
        decoder, step = self.decoder, batch.step + since
        quota = self._quotas(rows)
        masked, limit = self._masked(canvas, batch), self.limits[batch.kind, step]
        keys = candidate_keys(batch.keys, step, masked.shape[1])
        candidates, count = masked, sum(row.left for row in rows)
        if decoder.chooses_before_drawing:
            candidates, count = highest(uniform(keys), masked, limit, max(quota)), sum(quota)
        flat = true_indices(candidates, count)
        slot, position = flat // masked.shape[1], batch.where.flatten()[flat]
        states = self.passes.states(canvas.tokens, batch, slot, position, begins=since == 0)
        drawn = draw(self.model, decoder, states, keys.flatten(0, 1)[flat])
        chosen = torch.ones_like(flat, dtype=torch.bool)
        if not decoder.chooses_before_drawing:
            chosen = self._choose(drawn, flat, masked, limit, max(quota))
        at = (batch.row[slot], position)  # masked until now; a position that is not chosen stays masked
        canvas.tokens[at] = torch.where(chosen, drawn.tokens, self.model.mask_id)
        canvas.revealed_at[at] = torch.where(chosen, (batch.earlier + step)[slot], -1)
        canvas.log_prob[at] = torch.where(chosen, drawn.log_prob, 0.0)
        left = [row.left - share for row, share in zip(rows, quota, strict=True)]
        if decoder.certainty is not None:
            left = self._masked(canvas, batch).sum(1).tolist()
        for row, remaining in zip(rows, left, strict=True):
            row.step += row.left > 0
            row.left = remaining

    def _quotas(self, rows: Sequence[Row]) -> list[int]:
        """Return how many tokens the next step of each row reveals."""
        starts, spans = self.blocks.starts, self.blocks.spans
        shares = [self.blocks.shares[spans[starts[row.number], row.block].size] for row in rows]
        return [
            min(share[row.step], row.left) if row.step < len(share) else 0
            for row, share in zip(rows, shares, strict=True)
        ]

    def _masked(self, canvas: Completions, batch: Batch) -> Bool[Tensor, "S B"]:
        """Return which positions of the blocks are masked; a mask is never drawn."""
        return batch.inside & (canvas.tokens[batch.row[:, None], batch.where] == self.model.mask_id)

    def _choose(
        self,
        drawn: Draws,
        flat: Int[Tensor, " C"],
        masked: Bool[Tensor, "S B"],
        limit: Int[Tensor, " S"],
        most: int,
    ) -> Bool[Tensor, " C"]:
        """Return which candidates are revealed: the highest scores of each row, and all certain tokens."""
        score = torch.zeros(masked.shape, dtype=drawn.score.dtype, device=masked.device)
        score.view(-1)[flat] = drawn.score
        chosen = highest(score, masked, limit, most).flatten()[flat]
        if self.decoder.certainty is not None:
            chosen = chosen | (drawn.peak >= self.decoder.certainty)
        return chosen


def highest(
    score: Float[Tensor, "S B"], candidates: Bool[Tensor, "S B"], limit: Int[Tensor, " S"], most: int
) -> Bool[Tensor, "S B"]:
    """Return the ``limit`` best candidates of each row; ``most`` is the highest limit.

    >>> score = torch.tensor([[0.3, 0.9, 0.5], [0.3, 0.9, 0.5]])
    >>> highest(score, score < 0.8, torch.tensor([1, 2]), 2).int().tolist()
    [[0, 0, 1], [1, 0, 1]]
    """
    best = score.masked_fill(~candidates, -torch.inf).topk(most, dim=1).indices
    within = torch.arange(most, device=best.device) < limit[:, None]
    return torch.zeros_like(candidates).scatter(1, best, within) & candidates


def true_indices(mask: Bool[Tensor, "S B"], count: int) -> Int[Tensor, " C"]:
    """Return the flat indices of the true entries; their number is given, to avoid waiting for the device.

    >>> true_indices(torch.tensor([[True, False], [True, True]]), 3).tolist()
    [0, 2, 3]
    """
    return torch.nonzero_static(mask.flatten(), size=count).squeeze(1)
