"""The oracle: tiny worlds in which every law of the paper can be written down, in float64.

    world      all V^L sequences with their probabilities and rewards; tilts and posteriors
    path       the law of x_t, the path and terminal divergences, the population c-DTM loss
    decoder    the exact law of a decoder, by dynamic programming over masked states

Training does not use this package. The claims (`dtm.verify.claims`) compare the production code with it.
"""

from dtm.verify.exact.decoder import decoder_law
from dtm.verify.exact.path import (
    kl,
    local_kl,
    minimiser,
    ordered_log_laws,
    path_kl,
    population_loss,
    score_mass,
    scored,
    total_variation,
)
from dtm.verify.exact.world import REWARDS, World, all_sequences, denoiser, number, random_world

__all__ = [
    "REWARDS",
    "World",
    "all_sequences",
    "decoder_law",
    "denoiser",
    "kl",
    "local_kl",
    "minimiser",
    "number",
    "ordered_log_laws",
    "path_kl",
    "population_loss",
    "random_world",
    "score_mass",
    "scored",
    "total_variation",
]
