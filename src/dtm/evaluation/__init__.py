"""Measure models on a task's held-out prompts."""
