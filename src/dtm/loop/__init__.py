"""The annealing loop and everything that holds state."""
