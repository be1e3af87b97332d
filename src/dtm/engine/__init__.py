"""Decoding: `generate` draws completions of prompts from a denoiser; a `RolloutEngine` wraps it."""

from dtm.engine.base import RolloutEngine
from dtm.engine.decoder import Decoder, build_decoder
from dtm.engine.generation import Ended, at_end_token, generate
from dtm.engine.local import LocalEngine
from dtm.engine.orders import ORDERS, MaxProbability, Order, SampledConfidence, Uniform

__all__ = [
    "ORDERS",
    "Decoder",
    "Ended",
    "LocalEngine",
    "MaxProbability",
    "Order",
    "RolloutEngine",
    "SampledConfidence",
    "Uniform",
    "at_end_token",
    "build_decoder",
    "generate",
]
