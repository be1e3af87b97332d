"""Tasks: prompts, rewards and measures of success."""
