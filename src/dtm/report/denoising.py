"""Show how a completion is unmasked: an animation on a terminal, a few snapshots elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rich.console import Console
from rich.live import Live
from rich.text import Text

from dtm.engine.frames import Frame

MASK = "░"
STYLES = {"masked": "dim", "new": "bold green", "old": ""}
SECONDS, LONGEST = 8.0, 0.15
"""Seconds of the whole replay, and of a frame at most."""
SNAPSHOTS = 5
"""Frames shown where there is no terminal."""

Read = Callable[[Sequence[int]], str]
"""Token ids as text, without special tokens."""


def show(frames: Sequence[Frame], read: Read, console: Console) -> None:
    """Replay the steps, and leave the finished text."""
    if not console.is_terminal:
        for frame in _snapshots(frames):
            console.print(f"── step {frame.step} of {frames[-1].step}", highlight=False)
            console.print(drawn(frame, read), highlight=False, soft_wrap=True)
        return
    pause = min(LONGEST, SECONDS / len(frames))
    with Live(console=console, auto_refresh=False, vertical_overflow="visible") as live:
        for frame in frames:
            caption = Text(f"\nstep {frame.step} of {frames[-1].step}", style="dim")
            live.update(drawn(frame, read) + caption, refresh=True)
            time.sleep(pause)


def drawn(frame: Frame, read: Read) -> Text:
    """A frame as text: masks where tokens are not revealed yet, the newest tokens highlighted.

    End tokens are not drawn, so the masks after the end of a text vanish one by one.
    """
    parts = ((MASK * len(ids) if kind == "masked" else read(ids), STYLES[kind]) for kind, ids in frame.runs)
    return Text.assemble(*parts)


def _snapshots(frames: Sequence[Frame]) -> list[Frame]:
    last = len(frames) - 1
    places = {round(last * share / (SNAPSHOTS - 1)) for share in range(SNAPSHOTS)}
    return [frames[place] for place in sorted(places)]
