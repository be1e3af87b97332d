# examples/extending/my_text_task.py
"""A task for a language model: rows of text and a reward. Tokens, chat template and splits follow."""

import random
from dataclasses import dataclass

import dtm


@dataclass(frozen=True, kw_only=True, slots=True)
class SumConfig(dtm.TaskConfig):
    """Sums of two numbers. The fields are flags: --task.largest 99."""

    largest: int = 9
    """The largest number of a sum."""
    length: int = 16
    """Tokens of a completion."""


class Sums:
    """An object with `splits` and `reward`; the other attributes are optional."""

    Config = SumConfig
    name = "sums"
    reward_range = (0.0, 1.0)

    def __init__(self, config):
        draw = random.Random(0)
        pairs = [(draw.randint(0, config.largest), draw.randint(0, config.largest)) for _ in range(300)]
        rows = [{"prompt": f"What is {a} + {b}?", "total": a + b} for a, b in pairs]
        self.splits = {"train": rows[:200], "validation": rows[200:250], "test": rows[250:]}
        self.completion_length = config.length

    def reward(self, prompts, completions, total, **columns):
        """Other columns of a row arrive by name, one value per completion."""
        return [float(str(t) in text) for text, t in zip(completions, total, strict=True)]

    def metrics(self, completions, columns):
        """Further measures of an evaluation."""
        return {"digits": sum(any(map(str.isdigit, text)) for text in completions) / len(completions)}
