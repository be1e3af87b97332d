"""Denoisers: models that predict the clean token at a masked position."""

from dtm.models.adapters import LoRA
from dtm.models.denoiser import Denoiser
from dtm.models.policy import Policy
from dtm.models.shape import TransformerConfig
from dtm.models.transformer import Transformer

__all__ = ["Denoiser", "LoRA", "Policy", "Transformer", "TransformerConfig"]
