"""Several processes. This release trains with one; nothing else in the package knows about ranks."""

from __future__ import annotations

import os

from dtm.errors import require


def require_one_process() -> None:
    """Refuse a launch with several processes before anything starts."""
    processes = int(os.environ.get("WORLD_SIZE", "1"))
    require(
        processes == 1,
        f"{processes} processes were launched; this release trains with one. Start it without torchrun.",
    )
