"""Report an error that ends several processes once, by the first of them.

Most errors (a flag, a missing base, gradients that are not finite) are met by all processes alike, outside
the verbs of a group. The processes compare their messages in the store of the rendezvous. A process that
fails alone needs no partner: it waits for the first process for `PATIENCE`, then reports its own error.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from dtm.distributed.group import launched

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

PATIENCE = timedelta(seconds=10)
"""Time for which processes that fail wait for each other's messages."""


def report_once(message: str, tell: Callable[[str], None]) -> None:
    """Tell the message, in one process only if several fail with the same one; call it before this one ends.

    A process other than the first tells a message of its own with its number.
    """
    rank, size = os.environ.get("RANK", "0"), launched()
    if size == 1:
        tell(message)
    elif rank == "0":
        tell(message)
        with suppress(RuntimeError, ValueError):  # no store: there is nobody to wait for
            store = _store()
            store.set("first", message)
            store.wait([f"heard by {other}" for other in range(1, size)], PATIENCE)
    elif not _is_that_of_the_first(message, rank):
        tell(f"process {rank}: {message}")


def _is_that_of_the_first(message: str, rank: str) -> bool:
    """Return whether the first process has told the same message."""
    try:
        store = _store()
        store.wait(["first"], PATIENCE)
        told: bytes = store.get("first")
        store.set(f"heard by {rank}", "")
    except (RuntimeError, ValueError):  # it has not failed, or has ended
        return False
    return told.decode() == message


def _store() -> Store:
    """Connect to the key-value store of the rendezvous.

    The prefix keeps these messages apart from those of a group. The connection is a second one, because a
    pending call may block that of the group.
    """
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    return PrefixStore("reports", next(rendezvous("env://", timeout=PATIENCE))[0])
