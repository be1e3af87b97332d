"""A batch for any method: free logits as the model, twelve rollouts, and the masks the method asks for."""

from __future__ import annotations

import torch
from torch import nn

from dtm.config import MethodConfig
from dtm.config.registry import load_method_class
from dtm.loop.replay import Replay
from dtm.methods import Method
from dtm.models import Denoiser, Policy
from dtm.random import stream
from dtm.records import MaskedStates, Phase, Rollouts, Weights

PROMPT, WIDTH, VOCAB, END, BLOCK = 2, 8, 5, 0, 3
PHASE = Phase(0, 0.0, 1.0, 1.0)


class Free(Denoiser):
    """A logit of its own for every row, position and token; with one row, shared by all."""

    def __init__(self, rows: int, seed: int = 0) -> None:
        super().__init__()
        self.vocab_size, self.mask_id, self.eos_id = VOCAB + 1, VOCAB, END
        noise = torch.randn(rows, WIDTH, VOCAB + 1, generator=stream(seed, "logits"), dtype=torch.float64)
        self.logits = nn.Parameter(noise)

    def hidden(self, tokens, attention=None):
        return self.logits if len(self.logits) == len(tokens) else self.logits.expand(len(tokens), -1, -1)

    def head(self, rows):
        return rows


def build_method(settings: MethodConfig) -> Method:
    return load_method_class(settings.name)(settings)


def rollouts(reward=None) -> Rollouts:
    """Four prompts with three completions each, one of them with three equal rewards."""
    noise = stream(0, "rollouts")
    tokens = torch.randint(1, VOCAB, (12, WIDTH), generator=noise)
    tokens[::3, 5:] = END
    written = (torch.arange(WIDTH) >= PROMPT).expand(tokens.shape)
    steps = torch.rand(12, WIDTH - PROMPT, generator=noise).argsort(1)
    steps = torch.cat([torch.full((12, PROMPT), -1), steps], dim=1)
    given = torch.rand(12, generator=noise).index_fill(0, torch.tensor([3, 4, 5]), 0.3)
    group = torch.arange(4).repeat_interleave(3)
    reward = given if reward is None else torch.tensor(reward)
    log_prob = torch.zeros(tokens.shape)
    return Rollouts(tokens, torch.ones_like(written), written, steps, log_prob, reward, group, 0.0)


def batch(settings: MethodConfig, drawn: Rollouts | None = None) -> tuple[Method, MaskedStates, Weights]:
    """Everything that an update needs, for all rollouts that the method uses."""
    method = build_method(settings)
    replay = Replay(rollouts() if drawn is None else drawn, 1.0, method.prompt_baseline, method.credit)
    chosen, weights = replay.draw_groups(99, method.pairs, stream(0, "groups"))
    masking = method.masks(BLOCK, END)
    return method, masking.states(chosen, VOCAB, stream(0, "masks"), update=1), weights


def moved(policy: Policy) -> Policy:
    """A student away from π_a, and π_a away from π_0."""
    with torch.no_grad():
        for model, size in ((policy.student, 0.3), (policy.teacher, 0.2)):
            noise = torch.randn(model.logits.shape, generator=stream(1, "move"), dtype=torch.float64)
            model.logits.add_(size * noise)
    return policy


def pairs_of(policy, states):
    """S of each pair of masks under π_θ, π_a and π_0, by loops."""
    found = []
    for model in (policy.student, policy.teacher, policy.base):
        log_pi = model.logits.detach()[..., :VOCAB].log_softmax(-1)
        rows = []
        for row in range(len(states)):
            hits = [float(log_pi[row, k, states.clean[row, k]]) for k in states.eligible[row].nonzero()]
            rows.append(float(states.row_weight[row]) * sum(hits))
        pairs = [(one + other) / 2 for one, other in zip(rows[::2], rows[1::2], strict=True)]
        count = states.draws // 2
        found.append([pairs[k : k + count] for k in range(0, len(pairs), count)])
    return zip(*found, states.row_length[:: states.draws].tolist(), strict=True)
