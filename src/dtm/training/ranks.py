"""What several processes of one run must agree on; with a single process all of it is the identity."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from dtm import tilting

if TYPE_CHECKING:
    from accelerate import Accelerator


def start_accelerator(device: str, precision: str) -> Accelerator:
    """Accelerate's view of the processes, for this run's device and precision."""
    from accelerate import Accelerator  # slow to import, and only training needs it
    from accelerate.state import AcceleratorState

    # An earlier run in this process may have had another precision, which must not bind this one.
    AcceleratorState._reset_state(reset_partial_state=False)
    return Accelerator(cpu=device == "cpu", mixed_precision="bf16" if precision == "bfloat16" else "no")


def gather_all(values: Float[Tensor, " N"]) -> Float[Tensor, " M"]:
    """The values of all ranks, which may hold different numbers of them."""
    from accelerate.utils import gather_object

    return torch.tensor(gather_object(values.tolist()), dtype=values.dtype)


def global_log_z(tilt: Float[Tensor, " N"]) -> float:
    """log Z over the buffers of all ranks."""
    return float(tilting.log_mean_exp(gather_all(tilt)))


def mean_over_ranks(accelerator: Accelerator, values: Mapping[str, Tensor | float]) -> dict[str, float]:
    """The mean of each number over the ranks: equal everywhere, so that decisions are too."""
    stacked = torch.tensor([float(value) for value in values.values()], device=accelerator.device)
    return dict(zip(values, accelerator.reduce(stacked, "mean").tolist(), strict=True))
