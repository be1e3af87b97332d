"""Randomness: one independent `torch.Generator` for every (seed, purpose, step).

No draw in this package depends on a global generator. A longer rollout therefore never shifts the masks, and
a resumed run needs no stored generator state: it asks for the stream of the step it continues from.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def stream(seed: int, purpose: str, step: int = 0, device: torch.device | str = "cpu") -> torch.Generator:
    """The generator for one purpose at one step, e.g. ``stream(0, "masks", step=12)``."""
    # The trailing 0 keeps the draws of release 0.1: data splits and shipped bases depend on them.
    return torch.Generator(device).manual_seed(derived_seed(seed, purpose, step, 0))


def derived_seed(*parts: int | str) -> int:
    """A seed that is a hash of its parts."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big")


def in_rounds(size: int, count: int, generator: torch.Generator) -> torch.Tensor:
    """``count`` numbers below ``size`` in random order; none comes twice before all have come once."""
    rounds = range(-(-count // size))
    return torch.cat([torch.randperm(size, generator=generator) for _ in rounds])[:count]


@contextmanager
def seeded(seed: int, purpose: str, step: int = 0, device: torch.device | str = "cpu") -> Iterator[None]:
    """Make torch's global generators follow one stream inside the context, and restore them afterwards.

    For code that takes no generator, which is dropout alone.
    """
    cuda = [device] if torch.device(device).type == "cuda" else []
    with torch.random.fork_rng(devices=cuda):
        torch.manual_seed(stream(seed, purpose, step).initial_seed())
        yield
