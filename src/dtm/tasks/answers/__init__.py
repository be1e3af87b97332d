"""Graders: extract the answer from a generated text and judge it; one file per task, four sets of rules."""
