# examples/extending/my_model.py
"""A model: hidden states of all positions, and logits of the positions that are asked for."""

import torch
from torch import nn

import dtm


class Mixer(dtm.Denoiser):
    """Residual layers that mix the positions of sequences of one length.

    Prompts of unequal length are padded on the left, and `attention` is False there. A model for such prompts
    must give a padded row the numbers of the unpadded one; here all prompts have one length.
    """

    def __init__(self, vocab_size, mask_id, eos_id, length, width=24):
        super().__init__()
        self.vocab_size, self.mask_id, self.eos_id = vocab_size, mask_id, eos_id
        self.shape = (length, width)
        size = length * width
        self.embedding = nn.Embedding(vocab_size, width)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(size), nn.Linear(size, size), nn.GELU(), nn.Linear(size, size))
            for _ in range(2)
        )
        self.output = nn.Linear(width, vocab_size)

    def hidden(self, tokens, attention=None):
        """[B, L] tokens to [B, L, D] states."""
        x = self.embedding(tokens).flatten(1)
        for layer in self.layers:
            x = x + layer(x)
        return x.unflatten(1, self.shape)

    def head(self, rows):
        """[N, D] states to [N, V] logits; the base class excludes the mask token."""
        return self.output(rows)


def build():
    """The model of `--model.base examples/extending/my_model.py:build`, here for the task in my_task.py.

    Called once per start; a resumed run then loads its checkpoint. Load pretrained weights here. The
    vocabulary must be the task's.
    """
    torch.manual_seed(0)
    return Mixer(vocab_size=4, mask_id=3, eos_id=2, length=5)
