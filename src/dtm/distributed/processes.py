"""A group of several processes over torch.distributed: gloo between CPUs, nccl between GPUs.

Small things (rollouts, rewards, decisions) are sent as pickled objects over gloo; gradients are reduced on
their device. A process that ends, however it ends, closes its connections: the others then raise
`PeerError` at their next verb. `dtm.distributed.launch` and torchrun end those that are busy until then.
"""

from __future__ import annotations

import atexit
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar, final

import torch
import torch.distributed as dist
from torch import Tensor, nn

from dtm.distributed.group import Group, failure, mark_shared
from dtm.errors import PeerError

Value = TypeVar("Value")
WAIT = timedelta(hours=2)
"""Timeout of one verb: the slowest process may take this long to decode and score its rows. A process that
has ended is noticed at once."""
BUCKET = 2**25
"""Size of a bucket of gradients that is reduced in one call, in numbers."""


@final
class Processes(Group):
    """The processes that torchrun has started; this one joins them."""

    def __init__(self) -> None:
        self.rank, self.size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.neighbours = int(os.environ.get("LOCAL_WORLD_SIZE", self.size))
        self._is_lost = False
        backend, cards = "gloo", torch.cuda.device_count()
        if cards:
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % cards)
            # nccl needs a card for each process; gloo also works where several share one.
            backend = f"cpu:gloo,cuda:{'nccl' if cards >= self.neighbours else 'gloo'}"
        self._call(lambda: dist.init_process_group(backend, timeout=WAIT))
        atexit.register(self._leave)

    def _leave(self) -> None:
        """Leave the group; call it only without an error, since it waits for the other processes."""
        if not self._is_lost:
            dist.destroy_process_group()

    def gather(self, value: Value) -> list[Value]:
        """Exchange the values, pickled."""
        values: list[Any] = [None] * self.size
        self._call(lambda: dist.all_gather_object(values, value))
        return values

    def together(self, work: Callable[[], Value]) -> list[Value]:
        """Run the work, then exchange results and errors."""
        value, problem = None, None
        try:
            value = work()
        except Exception as error:
            problem = error
        told = None if problem is None else failure(problem, self.rank)
        outcomes = self.gather((value, told))
        if problem is not None:
            raise mark_shared(problem)
        for _, other in outcomes:
            if other is not None:
                raise mark_shared(other[0](other[1]))
        return [value for value, _ in outcomes]  # type: ignore[misc]

    def accumulate(
        self,
        parameters: Sequence[nn.Parameter],
        backward: Callable[[], list[Value]],
        in_order: bool = False,
    ) -> list[Value]:
        """Reduce the gradients in buckets; in order: one process after the other."""
        if not in_order:
            results = backward()
            gathered = self.gather((results, _present(parameters)))
            chosen = _with_gradient(parameters, [present for _, present in gathered])
            self._reduce(chosen, dist.all_reduce)
            return [result for results, _ in gathered for result in results]
        results = []
        for turn in range(self.size):
            found = backward() if turn == self.rank else []
            gathered = self.gather((found, _present(parameters)))
            chosen = _with_gradient(parameters, [gathered[turn][1]])
            self._reduce(chosen, functools.partial(dist.broadcast, src=turn))
            results += gathered[turn][0]
        return results

    def _reduce(self, parameters: Sequence[nn.Parameter], reduce: Callable[[Tensor], Any]) -> None:
        """Apply a collective operation to the gradients; a missing one counts as zero."""
        for bucket in _buckets(parameters):
            for parameter in bucket:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
            gradients = [parameter.grad for parameter in bucket if parameter.grad is not None]
            flat = torch.cat([gradient.flatten() for gradient in gradients])
            self._call(lambda flat=flat: reduce(flat))  # type: ignore[misc]
            for gradient, part in zip(
                gradients, flat.split([each.numel() for each in gradients]), strict=True
            ):
                gradient.copy_(part.view_as(gradient))

    def _call(self, collective: Callable[[], Any]) -> None:
        """Run a collective operation; a lost connection becomes an error that says so."""
        try:
            collective()
        except (RuntimeError, ConnectionError) as problem:
            self._is_lost = True
            raise PeerError(
                f"process {self.rank} of {self.size} lost the others: one of them has ended, or does not "
                f"answer. Its own message says why. Continue the run with --resume. ({problem})"
            ) from problem


def _present(parameters: Sequence[nn.Parameter]) -> list[bool]:
    return [parameter.grad is not None for parameter in parameters]


def _with_gradient(parameters: Sequence[nn.Parameter], present: Sequence[list[bool]]) -> list[nn.Parameter]:
    """Return the parameters whose gradients are to be reduced.

    An optimiser skips those without a gradient in any process; sharded weights are reduced by FSDP2.
    """
    return [
        parameter
        for parameter, *found in zip(parameters, *present, strict=True)
        if any(found) and not hasattr(parameter, "full_tensor")
    ]


def _buckets(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    """Yield parameters of one type, about `BUCKET` numbers at a time."""
    bucket: list[nn.Parameter] = []
    for parameter in parameters:
        full = sum(each.numel() for each in bucket) + parameter.numel() > BUCKET
        if bucket and (full or parameter.dtype != bucket[0].dtype):
            yield bucket
            bucket = []
        bucket.append(parameter)
    if bucket:
        yield bucket
