"""From a denoiser and prompts to finished sequences."""

from dtm.engine.batches import decode_all
from dtm.engine.orders import ORDERS, MaxProbability, Order, SampledConfidence, Uniform
from dtm.engine.ragged import decode_rows
from dtm.engine.sampler import Decoder, decode

__all__ = [
    "ORDERS",
    "Decoder",
    "MaxProbability",
    "Order",
    "SampledConfidence",
    "Uniform",
    "decode",
    "decode_all",
    "decode_rows",
]
