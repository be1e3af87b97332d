"""Randomness: one independent `torch.Generator` for every (seed, purpose, step).

No draw in this package depends on a global generator. A longer rollout therefore never shifts the masks, and
a resumed run needs no stored generator state: it makes the stream of the step that it continues from.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def stream(seed: int, purpose: str, step: int = 0, device: torch.device | str = "cpu") -> torch.Generator:
    """Return the generator of one purpose at one step, e.g. ``stream(0, "masks", step=12)``."""
    # The trailing 0 keeps the draws of release 0.1: data splits and shipped bases depend on them.
    return torch.Generator(device).manual_seed(derived_seed(seed, purpose, step, 0))


def derived_seed(*parts: int | str) -> int:
    """Hash the parts to a seed."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big")


def in_rounds(size: int, count: int, generator: torch.Generator) -> torch.Tensor:
    """Draw ``count`` indices below ``size``: one random permutation after the other, the last one cut."""
    rounds = range(-(-count // size))
    return torch.cat([torch.randperm(size, generator=generator) for _ in rounds])[:count]


@contextmanager
def seeded(seed: int, purpose: str, step: int = 0, device: torch.device | str = "cpu") -> Iterator[None]:
    """Make torch's global generators follow one stream inside the context, and restore them afterwards.

    Only dropout needs this: it takes no generator.
    """
    cuda = [device] if torch.device(device).type == "cuda" else []
    with torch.random.fork_rng(devices=cuda):
        torch.manual_seed(stream(seed, purpose, step).initial_seed())
        yield
