# examples/extending/my_reward.py
"""A reward: one number per completion, higher is better; None leaves a sample out."""


def reward(prompts, completions, **columns):
    """Maze: 1 where the path ends at the goal. A prompt is (start, goal), a completion a list of cells."""
    pairs = zip(prompts, completions, strict=True)
    return [float(bool(path) and path[-1] == goal) for (_, goal), path in pairs]
