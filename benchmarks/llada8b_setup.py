"""The sizes of the 8B benchmark, whole and in miniature, and random models of that shape."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dtm.models.adapters import LoRA
from dtm.models.nf4 import add_nf4_layers
from dtm.models.policy import Policy
from dtm.models.shape import TransformerConfig
from dtm.models.storage import without_memory
from dtm.models.transformer import Transformer
from dtm.models.weights import place
from dtm.random import stream
from measuring import GIB, Bench


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """What is measured, whole or in miniature."""

    model: TransformerConfig
    prompt: int = 172
    completion: int = 256
    block: int = 32
    batches: tuple[int, ...] = (30, 64, 128)
    """Rows together without a cache."""
    cached: tuple[int, ...] = (30, 128, 256)
    """Rows together with one."""
    ragged: tuple[int, int] = (256, 480)
    """Rows together, and in all: the paper's buffer."""
    shortest: int = 60
    rank: int = 128
    micro_batches: tuple[int, ...] = (12, 24)
    """Rows of an update's parts: the published number, with which lean settings are measured, and more."""
    step: int = 96
    """Rows of a step of the optimiser."""
    compared: int = 8
    """Rows that are decoded in two ways to compare."""
    card: int = 12 * GIB
    """Memory of the smallest card."""


WHOLE = Sizes(
    model=TransformerConfig(
        vocab_size=126_464,
        mask_id=126_336,
        eos_id=126_081,
        width=4096,
        layers=32,
        heads=32,
        ffn=12_288,
        rope_base=500_000.0,
        family="llada",
    )
)
SMALL = Sizes(
    model=TransformerConfig(
        vocab_size=99, mask_id=98, eos_id=1, width=64, layers=2, heads=4, ffn=128, family="llada"
    ),
    prompt=9,
    completion=16,
    block=8,
    batches=(2, 3),
    cached=(2, 3),
    ragged=(3, 8),
    shortest=5,
    rank=4,
    micro_batches=(2, 3),
    step=6,
    compared=2,
)


@dataclass
class Rig(Bench):
    """A bench for one size of model."""

    sizes: Sizes = WHOLE


def random_model(bench: Rig, nf4: bool = False) -> Transformer:
    """Weights of deviation 0.02, made tensor by tensor on the device."""
    model, noise = without_memory(bench.sizes.model), stream(0, "weights", device=bench.device)
    shapes = {name: value.shape for name, value in model.named_parameters()}
    if nf4:
        add_nf4_layers(model, model.linears())
    for name, shape in shapes.items():
        value = torch.ones(shape, device=bench.device, dtype=bench.dtype)
        if value.dim() == 2:
            value.normal_(0.0, 0.02, generator=noise)
        place(model, name, value, bench.dtype, bench.device)
    return model


def make_policy(
    bench: Rig, nf4: bool = False, recompute: int = 0, compiled: bool = True, merge: bool = False
) -> Policy:
    """Student and π_a over one random base."""
    base = random_model(bench, nf4)
    base.recompute = recompute
    lora = LoRA(rank=bench.sizes.rank, targets=("published",))
    policy = Policy(base, lora=lora, merge=merge)
    for model in (policy.student, policy.teacher):
        model.to(bench.device)
    if bench.on_gpu and compiled:
        policy.compile()
    return policy


def decoding_model(bench: Rig, fp8: bool = False) -> Transformer:
    """π_a as a run decodes with it: merged, and its projections fused or in eight bits."""
    model = make_policy(bench, merge=True).pi_a(fp8)
    assert isinstance(model, Transformer)
    return model
