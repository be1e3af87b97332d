"""Draw the denoising movie of a maze run as a GIF: the same prompts by the base and the tuned model.

    dtm train maze-small --out runs/movie
    python benchmarks/movie.py runs/movie --out docs/assets/denoising.gif

A frame is a decoding step. The mazes show the cells revealed so far: the start is a green circle, the goal an
orange square, the centre a cross. The strips below them show the tokens of the completion in order, grey
where they are still masked. Of the test prompts those whose start and goal are farthest apart are drawn, one
completion each, with the same noise for both models.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib import font_manager
from PIL import Image, ImageDraw, ImageFont

import dtm
from dtm.evaluation.reveals import PROMPTS, record
from dtm.models.denoiser import Denoiser
from dtm.random import derived_seed, stream
from dtm.records import Prompts
from dtm.tasks.maze.grid import Maze
from dtm.tasks.maze.task import MazeTask

Cell = tuple[int, int]
SQUARE, GAP, STRIP = 20, 36, 16
"""Pixels of a cell, between the two mazes, and of the strip of tokens."""
HEAD, FOOT = 34, 70
"""Pixels above the mazes, and below them."""
SCALE = 2
"""Frames are drawn at this multiple of their size and then reduced, so that edges are smooth."""
STEP_MS, HOLD_MS = 170, 2200
"""Milliseconds of a decoding step, and of the finished paths."""
COLOURS, SHADES = 48, 8
CANDIDATES = 64
"""Test prompts of which the farthest are drawn."""
WALL, FLOOR, MASK, TEXT = "#3a3a3a", "#ffffff", "#b9bec4", "#1f2328"
START, GOAL, CENTRE, NEW, END = "#00805e", "#c04a00", TEXT, "#f0e442", "#e4e8ec"
"""Start and goal as on the page of a run (--c2 and --c1 in page.css): a green circle, an orange square."""
RARE = (START, GOAL, NEW, END)
EARLY, LATE = (0, 114, 178), (156, 208, 242)


@dataclass(frozen=True)
class Reveal:
    """A recorded completion: the cell of each token (None: the end token), and the step that revealed it."""

    prompt: tuple[Cell, Cell]
    cells: list[Cell | None]
    steps: list[int]
    reward: float

    @property
    def last(self) -> int:
        """The step of the last reveal."""
        return max(self.steps)


def farthest(task: MazeTask, count: int) -> Prompts:
    """The test prompts whose start and goal are farthest apart, by the number of doors between them."""
    asked = task.prompts("test", CANDIDATES, stream(0, "movie prompts"))
    room = {cell: place for place, cell in enumerate(task.maze.rooms.tolist())}
    ends = torch.tensor([[room[start], room[goal]] for start, goal in asked.tokens[:, :2].tolist()])
    chosen = task.maze.hops[ends[:, 0], ends[:, 1]].argsort(descending=True, stable=True)[:count]
    return Prompts(asked.tokens[chosen], asked.attention[chosen], [asked.views[i] for i in chosen.tolist()])


def recorded(run: dtm.Run, model: Denoiser, task: MazeTask, prompts: Prompts) -> list[Reveal]:
    """One completion of each prompt, with the step of every reveal."""
    collector = run.assembly.collector()
    collector.engine.load(model.eval())
    drawn = collector.collect(prompts, 1, 0.0, derived_seed(0, "movie noise"))
    rows = drawn.rollouts
    return [
        Reveal(
            drawn.prompts[replay["row"]],
            [as_cell(text) for text in replay["tokens"]],
            replay["steps"],
            float(rows.reward[replay["row"]]),
        )
        for replay in record(model, task, rows)
    ]


def as_cell(text: str) -> Cell | None:
    """A cell such as "3,12"; None for a token that is not a cell.

    >>> as_cell("3,12"), as_cell("")
    ((3, 12), None)
    """
    row, comma, column = text.partition(",")
    return (int(row), int(column)) if comma else None


def frames(maze: Maze, base: Reveal, tuned: Reveal) -> list[Image.Image]:
    """A picture before the first step, one after each step, and the finished paths."""
    return [picture(maze, base, tuned, step) for step in range(-1, max(base.last, tuned.last) + 2)]


def picture(maze: Maze, base: Reveal, tuned: Reveal, step: int) -> Image.Image:
    """Both mazes after a step."""
    side = SQUARE * maze.size
    width, height = 2 * side + 3 * GAP, HEAD + side + FOOT
    image = Image.new("RGB", (width * SCALE, height * SCALE), FLOOR)
    draw = ImageDraw.Draw(image)
    for place, (name, shown) in enumerate((("base model", base), ("after tuning", tuned))):
        left = GAP + place * (side + GAP)
        draw.text(at(left, 8), name, fill=TEXT, font=font(16))
        panel(draw, maze, shown, step, left)
        strip(draw, shown, step, left, HEAD + side + 10, side)
        below = HEAD + side + 10 + STRIP + 8
        draw.text(at(left, below), caption(shown, step), fill=TEXT, font=font(14))
    return image.resize((width, height), Image.Resampling.LANCZOS)


def caption(shown: Reveal, step: int) -> str:
    """The number of masked tokens, and at the end the reward."""
    masked = sum(at > step for at in shown.steps)
    return f"{masked} tokens masked" if masked else f"reward {shown.reward:.2f}"


def panel(draw: ImageDraw.ImageDraw, maze: Maze, shown: Reveal, step: int, left: int) -> None:
    """The maze with the cells revealed up to a step; those of this step in another colour."""
    for row in range(maze.size):
        for column in range(maze.size):
            box(draw, left, (row, column), FLOOR if bool(maze.open[row, column]) else WALL)
    for cell, when in zip(shown.cells, shown.steps, strict=True):
        if cell is not None and when <= step:
            box(draw, left, cell, NEW if when == step else colour(when, shown.last))
    (start, goal), centre = shown.prompt, maze.centre
    for cell, mark in ((start, "start"), (goal, "goal"), (centre, "centre")):
        x, y = left + (cell[1] + 0.5) * SQUARE, HEAD + (cell[0] + 0.5) * SQUARE
        r = 0.32 * SQUARE
        if mark == "centre":
            for sign in (-1, 1):
                draw.line([at(x - r, y - sign * r), at(x + r, y + sign * r)], fill=CENTRE, width=4 * SCALE)
        else:
            shape, fill = (draw.ellipse, START) if mark == "start" else (draw.rectangle, GOAL)
            shape([at(x - r, y - r), at(x + r, y + r)], fill=fill, outline=TEXT, width=2 * SCALE)


def strip(draw: ImageDraw.ImageDraw, shown: Reveal, step: int, left: int, top: int, side: int) -> None:
    """The tokens of the completion from left to right."""
    each = side / len(shown.cells)
    for place, (cell, when) in enumerate(zip(shown.cells, shown.steps, strict=True)):
        fill: str | tuple[int, int, int] = END if cell is None else colour(when, shown.last)
        fill = MASK if when > step else NEW if when == step else fill
        x = left + place * each
        draw.rectangle([at(x, top), at(x + each - 2, top + STRIP)], fill=fill)


def colour(step: int, last: int) -> tuple[int, int, int]:
    """From dark for the first step to light for the last."""
    share = step / max(1, last)
    red, green, blue = (round(a + share * (b - a)) for a, b in zip(EARLY, LATE, strict=True))
    return red, green, blue


def box(draw: ImageDraw.ImageDraw, left: int, cell: Cell, fill: str | tuple[int, int, int]) -> None:
    """Fill the square of a cell."""
    x, y = left + cell[1] * SQUARE, HEAD + cell[0] * SQUARE
    draw.rectangle([at(x, y), at(x + SQUARE - 1, y + SQUARE - 1)], fill=fill)


def at(x: float, y: float) -> tuple[float, float]:
    """A place in the enlarged picture."""
    return x * SCALE, y * SCALE


def font(size: int) -> ImageFont.FreeTypeFont:
    """The sans-serif font that comes with matplotlib."""
    return ImageFont.truetype(font_manager.findfont("DejaVu Sans"), size * SCALE)


def write(maze: Maze, pairs: Sequence[tuple[Reveal, Reveal]], out: Path) -> None:
    """Write the movie of several prompts, one after the other, in an endless loop."""
    pictures, durations = [], []
    for base, tuned in pairs:
        drawn = frames(maze, base, tuned)
        pictures += drawn
        durations += [4 * STEP_MS, *[STEP_MS] * (len(drawn) - 2), HOLD_MS]
    palette = _palette(pictures)
    indexed = [image.quantize(palette=palette, dither=Image.Dither.NONE) for image in pictures]
    out.parent.mkdir(parents=True, exist_ok=True)
    indexed[0].save(out, save_all=True, append_images=indexed[1:], duration=durations, loop=0, optimize=True)


def _palette(pictures: Sequence[Image.Image]) -> Image.Image:
    """The colours of some frames; rare ones are given as much room as a frame has, or they would be lost."""
    width, height = pictures[0].size
    swatches: list[str | tuple[int, int, int]] = [
        *RARE,
        *(colour(share, SHADES) for share in range(SHADES + 1)),
    ]
    shown = [*pictures[:: len(pictures) // 8 + 1], *(Image.new("RGB", (width, height), s) for s in swatches)]
    row = Image.new("RGB", (width * len(shown), height))
    for place, image in enumerate(shown):
        row.paste(image, (place * width, 0))
    return row.quantize(COLOURS)


def main() -> None:
    """Draw the movie of a run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run", type=Path, help="folder of a finished maze run")
    parser.add_argument("--out", type=Path, default=Path("docs/assets/denoising.gif"))
    parser.add_argument("--prompts", type=int, default=3, choices=range(1, PROMPTS + 1))
    options = parser.parse_args()
    run = dtm.Run.open(options.run)
    task = run.assembly.task
    if not isinstance(task, MazeTask):
        parser.error(f"{options.run} is not a maze run")
    prompts = farthest(task, options.prompts)
    before, after = (recorded(run, model, task, prompts) for model in (run.assembly.base, run.model))
    write(task.maze, list(zip(before, after, strict=True)), options.out)
    print(f"wrote {options.out}, {options.out.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
