# examples/extending/my_callback.py
"""A callback: called with every event of a run, here to print evaluations."""

import dtm


def print_reward(event):
    """Event kinds: rollouts, audit, step, phase, evaluation, samples, resumed, stopped."""
    if event.kind == "evaluation":
        print(f"step {event.step}: held-out reward {event.values['reward']:.3f}")


if __name__ == "__main__":
    dtm.train("maze-small", callbacks=[print_reward])
