"""Reward fine-tuning of masked diffusion language models by Discrete Tilt Matching."""
