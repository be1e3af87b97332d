"""Use a bidirectional `transformers` model as a denoiser, without copying its weights and adapters."""

from __future__ import annotations

from typing import Any

from jaxtyping import Bool, Float, Int
from torch import Tensor

from dtm.models.denoiser import Denoiser


class HuggingFaceDenoiser(Denoiser):
    """π(v | x_t, i) from a model whose forward pass returns ``logits`` at every position.

    The model must attend in both directions, as BERT-like models do. A PEFT model works too: the active
    adapter decides what is computed, so one model can be student and π_a with two adapters.

    >>> from transformers import BertConfig, BertForMaskedLM
    >>> sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    >>> bert = BertForMaskedLM(BertConfig(vocab_size=10, **sizes))
    >>> HuggingFaceDenoiser(bert, mask_id=9, eos_id=0).vocab_size
    10
    """

    def __init__(self, model: Any, *, mask_id: int, eos_id: int, shift: int = 0) -> None:
        """``shift`` is 1 for models whose state at i − 1 predicts token i."""
        super().__init__()
        self.model = model
        self.vocab_size, self.mask_id, self.eos_id = model.config.vocab_size, mask_id, eos_id
        self.shift = shift

    def hidden(
        self, tokens: Int[Tensor, "B L"], attention: Bool[Tensor, "B L"] | None = None
    ) -> Float[Tensor, "B L V"]:
        """The model's logits, which stand for hidden states; the head picks rows of them."""
        mask = None if attention is None else attention.long()
        logits: Tensor = self.model(input_ids=tokens, attention_mask=mask).logits
        return logits

    def head(self, rows: Float[Tensor, "N V"]) -> Float[Tensor, "N V"]:
        """The rows, copied: the caller overwrites the mask token's logit."""
        return rows.clone()
