"""From a denoiser and prompts to finished sequences."""

from dtm.decoding.orders import ORDERS, MaxProbability, Order, SampledConfidence, Uniform
from dtm.decoding.sampler import Decoder, decode

__all__ = ["ORDERS", "Decoder", "MaxProbability", "Order", "SampledConfidence", "Uniform", "decode"]
