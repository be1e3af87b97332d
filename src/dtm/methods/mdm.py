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
    log_pi = denoiser(states.tokens, states.attention, states.scored, clean=states.context)
    hit = log_pi.gather(-1, states.x1[:, None]).squeeze(-1)
    return -(states.weight * hit).sum() / states.batch_rows
