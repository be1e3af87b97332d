"""What a run needs of a machine: memory, operations, time."""
