"""The maze as a task: its paths, prompts, rewards and measures."""

from __future__ import annotations

import pytest
import torch

from dtm.errors import ConfigError
from dtm.random import stream
from dtm.tasks.base import Task
from dtm.tasks.maze import MazeTask


@pytest.fixture(scope="module")
def task() -> MazeTask:
    return MazeTask(size=9, completion_length=24)


@pytest.fixture(scope="module")
def open_task() -> MazeTask:
    """Every door open: worked examples can be checked by eye. Centre (4, 4), scale 4."""
    return MazeTask(size=9, door_fraction=1.0, completion_length=16)


# ── pretraining paths ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("split", ["train", "validation", "test"])
@pytest.mark.parametrize("length", [3, 8, 24])
def test_examples_are_valid_simple_paths_laid_out_as_in_the_paper(split, length):
    task = MazeTask(size=9, completion_length=length)
    sequences = task.examples(split, 300, stream(0, "test"))
    assert sequences.tokens.shape == (300, 3 + length)
    assert sequences.attention.all()
    assert (sequences.is_completion == (torch.arange(3 + length) >= 3)).all()
    paths = task.read(sequences.tokens[:, 3:])
    for (start, goal, separator), path in zip(sequences.tokens[:, :3].tolist(), paths, strict=True):
        assert separator == task.sep_id
        assert start != goal
        assert task.flaw((divmod(start, 9), divmod(goal, 9)), path) is None
        assert len(set(path)) == len(path)


def test_paths_between_two_rooms_are_diverse():
    task = MazeTask(size=9, door_fraction=1.0)
    paths = task.read(task.examples("train", 20_000, stream(0, "test")).tokens[:, 3:])
    across = [tuple(path) for path in paths if path[0] == (1, 1) and path[-1] == (7, 7)]
    assert len(across) > 40
    assert len(set(across)) >= 15  # there are 20 without a detour
    assert max(map(across.count, across)) < len(across) / 3


def test_examples_follow_their_generator_and_the_splits_differ(task):
    train, again = (task.examples("train", 50, stream(0, "test")).tokens for _ in range(2))
    assert torch.equal(train, again)
    assert not torch.equal(train, task.examples("train", 50, stream(1, "test")).tokens)
    assert not torch.equal(train, task.examples("test", 50, stream(0, "test")).tokens)


def test_the_default_length_holds_nearly_all_paths_and_no_more_than_it_must():
    task = MazeTask(size=9)
    lengths = task._bank("train").lengths(20_000, stream(7, "test"))
    assert task.completion_length % 4 == 0
    assert (lengths <= task.completion_length).double().mean() >= 0.985
    assert 2 * task.maze.hops.max() + 1 <= task.completion_length
    assert (lengths <= task.completion_length - 4).double().mean() < 0.995 or (
        2 * task.maze.hops.max() + 1 > task.completion_length - 4
    )


def test_no_sampled_path_beats_the_best(task):
    sequences = task.examples("train", 500, stream(0, "test"))
    prompts = [(divmod(s, 9), divmod(g, 9)) for s, g in sequences.tokens[:, :2].tolist()]
    rewards = task.reward(prompts, task.read(sequences.tokens[:, 3:]))
    bests = [task.best([prompt]) for prompt in prompts]
    assert all(reward <= best for reward, best in zip(rewards, bests, strict=True))
    assert any(reward < best for reward, best in zip(rewards, bests, strict=True))
    assert task.best(prompts) == pytest.approx(sum(bests) / len(bests))
    assert max(bests) == task.reward_range[1]


@pytest.mark.parametrize(("length", "best"), [(5, 0.0), (9, 2 / 3)])
def test_the_best_reward_is_that_of_paths_that_fit_the_completion(length, best):
    """Five cells lead straight through the centre; nine lead around it, two cells away."""
    task = MazeTask(size=7, door_fraction=1.0, completion_length=length)
    assert task.best([((3, 1), (3, 5))]) == pytest.approx(best)


# ── prompts ───────────────────────────────────────────────────────────────────────────────────────


def test_the_task_meets_the_protocol(task):
    checked: Task = task
    assert checked.vocab_size == 81 + 3
    assert sorted([checked.eos_id, task.sep_id, checked.mask_id]) == [81, 82, 83]


def test_the_splits_are_disjoint_and_together_complete(task):
    sizes = {"train": 192, "validation": 24, "test": 24}
    pairs = {split: set(task.prompts(split, size, stream(0, "test")).views) for split, size in sizes.items()}
    assert {split: len(found) for split, found in pairs.items()} == sizes
    assert len(set().union(*pairs.values())) == 16 * 15
    for found in pairs.values():
        assert {(goal, start) for start, goal in found} == found  # the way back is never in another split
    again = MazeTask(size=9, completion_length=24)
    assert set(again.prompts("test", 24, stream(9, "test")).views) == pairs["test"]


def test_prompt_tokens_and_views_name_the_same_rooms(task):
    prompts = task.prompts("train", 300, stream(0, "test"))
    assert prompts.tokens.shape == (300, 3)
    for (start, goal, separator), view in zip(prompts.tokens.tolist(), prompts.views, strict=True):
        assert view == (divmod(start, 9), divmod(goal, 9))
        assert separator == task.sep_id
        assert start != goal


def test_pairs_too_far_apart_for_the_completion_are_never_asked():
    task = MazeTask(size=9, completion_length=5)
    for split in ("train", "validation", "test"):
        cells = task.prompts(split, 60, stream(0, "test")).tokens[:, :2].contiguous()
        start, goal = torch.searchsorted(task.maze.rooms, cells).T
        assert int(task.maze.hops[start, goal].max()) == 2  # two doors: five cells


# ── reward and measures ───────────────────────────────────────────────────────────────────────────

TOP_ROW = [(1, column) for column in range(1, 8)]
ACROSS = ((1, 1), (1, 7))


def test_reward_is_the_least_distance_to_the_centre_over_half_the_size(open_task):
    assert open_task.reward([ACROSS], [TOP_ROW]) == [3 / 4]  # (1, 4) is 3 steps from (4, 4)
    assert open_task.reward([((1, 1), (3, 1))], [[(1, 1), (2, 1), (3, 1)]]) == [4 / 4]
    assert open_task.reward_range == (-0.4, 4 / 4)  # from a corner room to the next


@pytest.mark.parametrize(
    ("path", "flaw"),
    [
        ([], "begin"),
        (TOP_ROW[1:], "begin"),
        (TOP_ROW[:-1], "end"),
        ([(1, 1), (1, 2), None, (1, 4), (1, 5), (1, 6), (1, 7)], "not a cell"),
        ([(1, 1), (0, 1), (0, 2), *[(0, c) for c in range(3, 8)], (1, 7)], "wall"),
        ([(1, 1), (1, 3), (1, 4), (1, 5), (1, 6), (1, 7)], "jumps"),
        ([(1, 1), (1, 1), *TOP_ROW[1:]], "jumps"),
    ],
)
def test_each_kind_of_invalid_path_pays_the_penalty(open_task, path, flaw):
    assert flaw in open_task.flaw(ACROSS, path)
    assert open_task.reward([ACROSS], [path]) == [-0.4]
    assert "invalid" in open_task.show(ACROSS, path)


def test_a_walk_that_returns_to_a_cell_is_valid(open_task):
    assert open_task.flaw(ACROSS, [(1, 1), (1, 2), *TOP_ROW]) is None


def test_read_stops_at_the_padding_and_a_pad_inside_spoils_the_path(open_task):
    pad, cells = open_task.pad_id, [row * 9 + column for row, column in TOP_ROW]
    clean = [*cells, *[pad] * 9]
    holed = [*cells[:3], pad, *cells[3:], *[pad] * 8]
    trailing = [*cells, *[pad] * 8, cells[-1]]
    masked = [*cells[:3], open_task.mask_id, *cells[4:], *[pad] * 9]
    paths = open_task.read(torch.tensor([clean, holed, trailing, masked, [pad] * 16]))
    assert paths[0] == TOP_ROW
    assert paths[1] == [*TOP_ROW[:3], None, *TOP_ROW[3:]]
    assert paths[4] == []
    assert open_task.reward([ACROSS] * 5, paths) == [3 / 4, -0.4, -0.4, -0.4, -0.4]


def test_measures_of_a_worked_example(open_task):
    around = [(1, 1), (2, 1), (3, 1), (3, 2), (3, 3), (2, 3), (1, 3), *TOP_ROW[3:]]
    corner = ((1, 1), (3, 1))
    prompts = [ACROSS, ACROSS, ACROSS, corner, corner]
    paths = [TOP_ROW, around, TOP_ROW[:-1], [(1, 1), (2, 1), (3, 1)], []]
    reward = torch.tensor(open_task.reward(prompts, paths))
    measures = open_task.measure(prompts, paths, reward, torch.tensor([0, 0, 0, 1, 1]))
    assert measures["valid"] == pytest.approx(3 / 5)
    assert measures["reward"] == pytest.approx((3 / 4 + 2 / 4 - 0.4 + 1 - 0.4) / 5)
    assert measures["reward_of_valid"] == pytest.approx((3 / 4 + 2 / 4 + 1) / 3)
    # Group 0: 11 cells of the detour and (1, 2), over the 11 of the longest. Group 1: one path.
    assert measures["coverage"] == pytest.approx((12 / 11 + 1) / 2)


def test_measures_without_a_valid_path_are_numbers(open_task):
    measures = open_task.measure([ACROSS], [[]], torch.tensor([-0.4]), torch.tensor([0]))
    assert measures == {"reward": pytest.approx(-0.4), "valid": 0, "reward_of_valid": 0, "coverage": 0}


def test_show_draws_the_maze_the_path_and_the_verdict(open_task):
    picture = open_task.show(ACROSS, TOP_ROW).splitlines()
    assert picture[0] == " ".join("#" * 9)
    assert picture[1] == "# S . . . . . G #"
    assert picture[-1] == "valid"
    through_a_wall = open_task.show(ACROSS, [(1, 1), (0, 1), (0, 2), (1, 2), *TOP_ROW[2:]]).splitlines()
    assert through_a_wall[0] == "# x x # # # # # #"
    assert through_a_wall[-1] == "invalid (the path runs into a wall)"


# ── errors ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"size": 10}, "odd and at least 5, got 10; try 11"),
        ({"size": 3}, "odd and at least 5, got 3; try 5"),
        ({"door_fraction": 1.5}, r"one in \[0, 1\] instead of 1.5"),
        ({"completion_length": 2}, "completion_length 2 reaches no goal"),
        ({"penalty": 0.5}, "penalty must not exceed 0"),
        ({"held_out": 0.5}, "must lie strictly between 0 and 0.5"),
    ],
)
def test_bad_arguments_are_refused_with_a_remedy(arguments, message):
    with pytest.raises(ConfigError, match=message):
        MazeTask(**arguments)


def test_an_unknown_split_is_refused_with_the_nearest_one(task):
    for draw in (task.prompts, task.examples):
        with pytest.raises(ConfigError, match=r"unknown split 'tests'\. Did you mean 'test'\?"):
            draw("tests", 4, stream(0, "test"))
