"""Runs on disk: folders, checkpoints, events, locks and signals."""
