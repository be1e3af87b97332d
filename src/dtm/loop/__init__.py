"""Training loops, and all state of a run: policy, learner, buffer, progress and checkpoints."""
