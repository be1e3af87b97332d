"""Small networks, prompts and decoders that the tests of the engine share."""

from __future__ import annotations

import torch

from dtm.engine import ORDERS
from dtm.models import Transformer, TransformerConfig
from dtm.random import stream
from dtm.records import Prompts

MASK, EOS, LENGTH = 11, 0, 10
FAMILIES = {
    "llada": {},
    "dream": {"shift": 1, "qkv_bias": True, "kv_heads": 2},
}


def network(family: str, layers: int = 2) -> Transformer:
    shape = TransformerConfig(
        vocab_size=12,
        mask_id=MASK,
        eos_id=EOS,
        width=32,
        layers=layers,
        heads=4,
        ffn=48,
        family=family,
        **FAMILIES[family],
    )
    built = Transformer(shape, stream(0, "test"))
    with torch.no_grad():
        for parameter in built.parameters():
            parameter.mul_(10 if parameter.dim() == 2 else 1)
    return built.eval()


def asked(*lengths: int) -> Prompts:
    """Prompts of different lengths, padded on the left."""
    width = max(lengths)
    tokens = torch.randint(1, MASK, (len(lengths), width), generator=stream(0, "prompts"))
    attention = torch.arange(width) >= width - torch.tensor(lengths)[:, None]
    return Prompts(tokens.masked_fill(~attention, 0), attention, [None] * len(lengths))


LENGTHS = (3, 7, 5, 1, 7)


def alone(prompts: Prompts, row: int) -> torch.Tensor:
    """A prompt without its padding."""
    return prompts.tokens[row][prompts.attention[row]]


class Wavering:
    """An order that reads both the posterior and the noise, as one of your own may."""

    reads_posterior, exact = True, True

    def score(self, log_pi, drawn, noise):
        return log_pi.amax(-1) + 3 * noise


DECODERS = [
    {"order": Wavering(), "block": 5},
    *({"order": ORDERS[name](), "block": 4, "tokens_per_step": 2} for name in ORDERS),
    {"order": ORDERS["max-probability"](), "block": None, "temperature": 0.5},
    {"order": ORDERS["sampled-confidence"](), "block": 3, "temperature": 0.0},
    {"order": ORDERS["uniform"](), "block": 4, "certainty": 0.6},
    {"order": ORDERS["max-probability"](), "block": 5, "certainty": 0.6},
]
