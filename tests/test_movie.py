"""The movie of the README: steps are drawn as they were recorded, and the file stays small."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
from PIL import Image

ROOT = Path(__file__).parents[1]


@pytest.fixture
def movie(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield importlib.import_module("movie")
    sys.modules.pop("movie")


def test_the_movie_of_a_run_has_a_frame_for_each_step(movie, finished, tmp_path, monkeypatch, capsys):
    out = tmp_path / "movie.gif"
    command = ["movie.py", str(finished.path), "--prompts", "2", "--out", str(out)]
    monkeypatch.setattr(sys, "argv", command)
    movie.main()
    task = finished.assembly.task
    prompts = movie.farthest(task, 2)
    base, tuned = (
        movie.recorded(finished, model, task, prompts) for model in (finished.assembly.base, finished.model)
    )
    assert [reveal.prompt for reveal in base] == [reveal.prompt for reveal in tuned] == prompts.views
    frames = sum(max(a.last, b.last) + 3 for a, b in zip(base, tuned, strict=True))
    with Image.open(out) as image:
        assert image.n_frames <= frames  # equal neighbours are merged
        assert image.n_frames > 2
    assert "wrote" in capsys.readouterr().out


def test_a_frame_shows_what_is_revealed_so_far(movie, finished):
    maze = finished.assembly.task.maze
    (row, column), *_ = maze.open.nonzero().tolist()
    seen = movie.Reveal(((row, column), (row, column)), [None, (row, column)], [0, 1], 0.5)
    assert [movie.caption(seen, step) for step in (-1, 0, 1)] == [
        "2 tokens masked",
        "1 tokens masked",
        "reward 0.50",
    ]
    corner = (movie.GAP + column * movie.SQUARE + 2, movie.HEAD + row * movie.SQUARE + 2)
    before, now, after = (movie.picture(maze, seen, seen, step).getpixel(corner) for step in (0, 1, 2))
    assert len({before, now, after}) == 3


def test_the_packaged_movie_is_small():
    assert (ROOT / "docs" / "assets" / "denoising.gif").stat().st_size < 400_000
