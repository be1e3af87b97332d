"""Show how a completion is unmasked: an animation on a terminal, a few snapshots elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from dtm.engine.frames import Frame

MASK = "░"
STYLES = {"masked": "dim", "new": "bold green", "old": ""}
SECONDS, LONGEST = 8.0, 0.15
"""Longest time of the whole replay, and of a frame, in seconds."""
SNAPSHOTS = 5
"""Frames printed without a terminal."""

Read = Callable[[Sequence[int]], str]
"""Function that decodes token ids to text, without special tokens."""


def show(frames: Sequence[Frame], read: Read, console: Console) -> None:
    """Replay the steps, and leave the finished text."""
    if not console.is_terminal:
        for frame in _snapshots(frames):
            console.print(f"── step {frame.step} of {frames[-1].step}", highlight=False)
            console.print(drawn(frame, read), highlight=False, soft_wrap=True)
        return
    _play([drawn(frame, read) + _caption(frame, frames) for frame in frames], console)


def show_together(replays: Mapping[str, Sequence[Frame]], read: Read, console: Console) -> None:
    """Replay completions side by side on a terminal, each under its name."""
    longest = max(map(len, replays.values()))
    pictures = []
    for step in range(longest):
        table = Table(*replays, box=None, expand=True, padding=(0, 2, 0, 0), header_style="bold")
        now = [(frames[min(step, len(frames) - 1)], frames) for frames in replays.values()]
        table.add_row(*(drawn(frame, read) + _caption(frame, frames) for frame, frames in now))
        pictures.append(table)
    _play(pictures, console)


def _play(pictures: Sequence[RenderableType], console: Console) -> None:
    pause = min(LONGEST, SECONDS / len(pictures))
    with Live(console=console, auto_refresh=False, vertical_overflow="visible") as live:
        for picture in pictures:
            live.update(picture, refresh=True)
            time.sleep(pause)


def _caption(frame: Frame, frames: Sequence[Frame]) -> Text:
    return Text(f"\nstep {frame.step} of {frames[-1].step}", style="dim")


def drawn(frame: Frame, read: Read) -> Text:
    """Format a frame as text: masks for tokens not yet revealed, the newest tokens highlighted.

    End tokens are not shown, so the masks after the end of a text disappear one by one.
    """
    parts = ((MASK * len(ids) if kind == "masked" else read(ids), STYLES[kind]) for kind, ids in frame.runs)
    return Text.assemble(*parts)


def _snapshots(frames: Sequence[Frame]) -> list[Frame]:
    last = len(frames) - 1
    places = {round(last * share / (SNAPSHOTS - 1)) for share in range(SNAPSHOTS)}
    return [frames[place] for place in sorted(places)]
