"""Countdown: reach a target with three numbers, each used once, and + - * /."""
