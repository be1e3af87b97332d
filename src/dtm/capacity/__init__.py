"""Estimates of the memory, FLOPs and time that a run needs."""
