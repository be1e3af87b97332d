"""Randomness: one independent `torch.Generator` for every (seed, purpose, step, rank).

No draw in this package touches a global generator. A longer rollout therefore never shifts the
masks, ranks never share noise, and a resumed run needs no stored generator state: it asks for
the stream of the step it continues from.
"""

from __future__ import annotations

import hashlib

import torch


def stream(
    seed: int, purpose: str, step: int = 0, rank: int = 0, device: torch.device | str = "cpu"
) -> torch.Generator:
    """The generator for one purpose at one step, e.g. ``stream(0, "masks", step=12)``."""
    digest = hashlib.blake2b(f"{seed}/{purpose}/{step}/{rank}".encode(), digest_size=7).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest, "big"))
