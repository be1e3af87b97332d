"""Reading the answer out of a generated text, and judging it: one file a task, four sets of rules."""
