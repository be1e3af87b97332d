"""Tasks: prompts, rewards and measures."""
