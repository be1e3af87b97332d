# examples/extending/my_reward.py
"""A reward: one number per completion, higher is better; None leaves a sample out."""

MIDDLE = {(row, column) for row in range(5, 10) for column in range(5, 10)}


def reward(prompts, completions, **columns):
    """Maze: 1 where a path, a list of cells, reaches its goal and keeps out of the middle."""
    pairs = zip(prompts, completions, strict=True)  # a prompt is (start, goal)
    return [float(path[-1:] == [goal] and MIDDLE.isdisjoint(path[1:-1])) for (_, goal), path in pairs]
