"""Floating-point operations of a forward pass, from the model's shape.

Letters: P weights of the projections, D width, V rows of the head. A multiplication and its addition are two.
Left out: norms, nonlinearities, softmax, and the adapters' own low-rank products (a few percent).
"""

from __future__ import annotations

from dtm.models.denoiser import Denoiser
from dtm.models.memory import projection_parameters
from dtm.models.transformer import Transformer, TransformerConfig


def forward_flops(shape: TransformerConfig, rows: int, length: int, scored: int) -> int:
    """Rows · length · (2 P + 4 layers · length · D) for the blocks, 2 D V for each scored position."""
    token = 2 * projection_parameters(shape) + 4 * shape.layers * length * shape.width
    return rows * length * token + 2 * scored * shape.rows * shape.width


def model_flops(model: Denoiser, rows: int, length: int, scored: int) -> int:
    """The same for any denoiser; of one whose shape is unknown, two for each weight and token."""
    if isinstance(model, Transformer):
        return forward_flops(model.config, rows, length, scored)
    return 2 * sum(parameter.numel() for parameter in model.parameters()) * rows * length
