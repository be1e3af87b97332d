# examples/extending/my_task.py
"""A task with a vocabulary of its own: write bits whose parity is the one that the prompt asks for.

Tokens: 0 and 1 are bits, 2 ends a completion, 3 is the mask. The prompt is one bit, the wanted parity.
"""

import torch

from dtm.records import Prompts, Sequences

LENGTH = 4


class Parity:
    """The `Task` protocol of dtm.tasks.base, complete."""

    name = "parity"
    vocab_size, mask_id, eos_id = 4, 3, 2
    completion_length = LENGTH
    reward_range = (0.0, 1.0)

    def prompts(self, split, count, generator):
        """Prompts as tokens [N, P], an attention mask, and the view that rewards receive."""
        tokens = torch.randint(2, (count, 1), generator=generator, device=generator.device)
        return Prompts(tokens, torch.ones_like(tokens, dtype=torch.bool), tokens[:, 0].tolist())

    def examples(self, split, count, generator, progress=1.0):
        """Sequences for `dtm pretrain`: random bits, so the base is right half of the time."""
        tokens = torch.randint(2, (count, 1 + LENGTH), generator=generator, device=generator.device)
        is_completion = torch.ones_like(tokens, dtype=torch.bool)
        is_completion[:, 0] = False
        return Sequences(tokens, torch.ones_like(is_completion), is_completion)

    def read(self, completions):
        """Completion tokens in the form that rewards receive."""
        return completions.tolist()

    def reward(self, prompts, completions, **columns):
        """1 where the parity of the bits is the one asked for."""
        pairs = zip(prompts, completions, strict=True)
        return [float(sum(bits) % 2 == wanted) for wanted, bits in pairs]

    def measure(self, prompts, completions, reward, group, **columns):
        """Measures of an evaluation; "reward" is required."""
        return {"reward": float(reward.mean()), "ones": torch.tensor(completions).float().mean().item()}

    def best(self, prompts):
        """The highest mean reward that a model can reach; None if unknown."""
        return 1.0

    def picture(self, before, after):
        """A figure for the report; None: no figure."""
        return None

    def show(self, prompt, completion):
        """A sample as text, for `dtm sample`."""
        return f"parity {prompt}: {completion}"
