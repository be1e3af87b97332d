"""What several processes of one run must agree on, and the noise that they must not share.

With a single process, agreeing is the identity.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from dtm import losses
from dtm.errors import require
from dtm.random import stream

if TYPE_CHECKING:
    from accelerate import Accelerator


def start_accelerator(device: torch.device, precision: str) -> Accelerator:
    """Accelerate for one run on one device; several processes are refused before anything starts."""
    from accelerate import Accelerator  # slow to import, and only training needs it
    from accelerate.state import AcceleratorState

    # An earlier run in this process may have had another device or precision, which must not bind this one.
    AcceleratorState._reset_state(reset_partial_state=True)
    precisions = {"float32": "no", "bfloat16": "bf16"}
    accelerator = Accelerator(cpu=device.type == "cpu", mixed_precision=precisions[precision])
    require(
        accelerator.num_processes == 1,
        f"{accelerator.num_processes} processes were launched; this release trains with one. "
        "Start it without accelerate launch or torchrun.",
    )
    return accelerator


def own_stream(accelerator: Accelerator, seed: int, purpose: str, step: int = 0) -> torch.Generator:
    """The generator of this process, on its device, for one purpose at one step."""
    return stream(seed, purpose, step, accelerator.process_index, accelerator.device)


def gather_all(values: Float[Tensor, " N"]) -> Float[Tensor, " M"]:
    """The values of all ranks, which may hold different numbers of them."""
    from accelerate.utils import gather_object

    return torch.tensor(gather_object(values.tolist()), dtype=values.dtype)


def global_log_z(tilt: Float[Tensor, " N"]) -> float:
    """log Z over the buffers of all ranks."""
    return float(losses.log_mean_exp(gather_all(tilt)))


def mean_over_ranks(accelerator: Accelerator, values: Mapping[str, Tensor | float]) -> dict[str, float]:
    """The mean of each number over the ranks: equal everywhere, so that decisions are too."""
    stacked = torch.tensor([float(value) for value in values.values()], device=accelerator.device)
    return dict(zip(values, accelerator.reduce(stacked, "mean").tolist(), strict=True))
