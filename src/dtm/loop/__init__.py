"""The training loop and the state of a run: policy, learner, buffer and progress."""
