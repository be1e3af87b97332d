"""Ready-made runs: functions that return a RunConfig."""
