"""The pretraining objective of masked diffusion: the evidence bound  [eqs. 5, 6]."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from dtm.models.denoiser import Denoiser
from dtm.records import MaskedStates


def mdm_loss(denoiser: Denoiser, states: MaskedStates) -> Float[Tensor, ""]:
    r"""−∫ λ(t) E[Σ_{masked} log π_θ(x_1^i | x_t)] dt in mask-count form: nats per sequence.

    An upper bound on −log ρ_θ(x_1); over held-out data, on the cross-entropy.
    """
    rows = denoiser(states.tokens, states.attention, states.scored, head=False, clean=states.context)
    return -(states.weight * denoiser.log_prob(rows, states.x1)).sum() / states.batch_rows
