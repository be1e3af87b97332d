r"""Another model as the proposal: the log-ratio of the target's path to the proposal's, in one block.

    log K(x_s | x_{s−1}) / q(x_s | x_{s−1}) = Σ_steps Σ_{i revealed} log π_0(x_i | x_t) − log π_q(x_i | x_t)

With a model that was tuned to the tilt a, the weights are nearly equal. The formula needs an order of reveals
that does not depend on the model, so that the order has the same probability under both models.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from dtm.engine.decoder import Decoder
from dtm.errors import require
from dtm.models.denoiser import Denoiser
from dtm.padding import where_padded
from dtm.records import Completions


def require_ratio(decoder: Decoder) -> None:
    """Raise an error for a decoder whose path probabilities do not follow from those of the tokens."""
    require(
        decoder.chooses_before_drawing and decoder.temperature == 1 and decoder.cache != "block",
        "another model can propose for the target only in uniform order at temperature 1, without certainty "
        "and without a block cache: give such a Decoder",
    )


def path_log_prob(
    model: Denoiser, canvas: Completions, rows: Sequence[int], columns: slice, batch: int
) -> tuple[Float[Tensor, " R"], int]:
    """Return Σ log π(x_i | x_t) over tokens of some columns, each at its reveal step, and the passes.

    Passes are counted per row; their number is that of the decoder's steps.
    """
    parts, passes = [], 0
    for first in range(0, len(rows), batch):
        own = canvas.select(rows[first : first + batch])
        inside = torch.zeros_like(own.is_completion)
        inside[:, columns] = own.is_completion[:, columns]
        steps = own.revealed_at.masked_fill(~inside, -1)
        total = torch.zeros(len(own), dtype=torch.float64, device=steps.device)
        begin = int(steps.masked_fill(~inside, int(steps.max())).min())
        for step in range(begin, int(steps.max()) + 1):
            flat = (steps == step).flatten().nonzero().squeeze(1)
            x_t = own.tokens.masked_fill(own.revealed_at >= step, model.mask_id)
            log_pi = model(x_t, where_padded(own.attention), flat)
            found = log_pi.gather(1, own.tokens.flatten()[flat, None]).squeeze(1).double()
            total.index_add_(0, flat // own.tokens.shape[1], found)
            passes += int((steps == step).any(1).sum())
        parts.append(total)
    return torch.cat(parts), passes


def log_ratio(
    target: Denoiser, canvas: Completions, rows: Sequence[int], columns: slice, batch: int
) -> tuple[Float[Tensor, " R"], int]:
    """Return the log-ratio of some rows in the columns of a block, and the target's passes for it."""
    under_target, passes = path_log_prob(target, canvas, rows, columns, batch)
    return under_target - canvas.log_prob[list(rows), columns].double().sum(1), passes
