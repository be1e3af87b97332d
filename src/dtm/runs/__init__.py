"""A run on disk: its folder, checkpoints, events and signals."""
