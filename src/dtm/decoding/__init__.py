"""From a denoiser and prompts to finished sequences."""

from dtm.decoding.batches import decode_all
from dtm.decoding.orders import ORDERS, MaxProbability, Order, SampledConfidence, Uniform
from dtm.decoding.ragged import decode_rows
from dtm.decoding.sampler import Decoder, decode

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
