"""Record how a few held-out completions were unmasked: the step, confidence and alternatives of each token.

A rollout has the step and the log-probability of every reveal. The alternatives are computed again with the
model, one row per decoding step: by exact passes over whole rows, also if the decoder uses a cache.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dtm.models.denoiser import Denoiser
from dtm.padding import where_padded
from dtm.records import Rollouts
from dtm.tasks.base import Task

PROMPTS = 4
"""Largest number of recorded prompts: the first ones of the evaluation, the same at every evaluation."""
FEWEST = 2
"""Number of recorded prompts if completions are long."""
STATES = 256
"""Largest number of rows passed through the model, if more than `FEWEST` prompts are recorded."""
TOGETHER = 32
"""Rows per pass."""
ALTERNATIVES = 4
"""Number of most likely tokens kept per position."""


@torch.no_grad()
def record(
    model: Denoiser, task: Task, rollouts: Rollouts, base: Denoiser | None = None
) -> list[dict[str, Any]]:
    """Return the reveals of the first completion of a few prompts, as plain values for JSON.

    Each has "row" (its place among the rollouts), "tokens" as text, "steps", "confidence" (the probability of
    the token when it was revealed, at temperature 1) and "alternatives" [[text, probability], …]; with a
    ``base`` also "kl", the KL in nats between the predictions of model and base along the reveals.
    """
    steps = int(rollouts.revealed_at.max()) + 1 if len(rollouts) else 0
    if steps < 1:  # the engine does not record the steps
        return []
    first: dict[int, int] = {}
    for row, group in enumerate(rollouts.group.tolist()):
        first.setdefault(group, row)
    rows = list(first.values())[: min(PROMPTS, max(FEWEST, STATES // steps))]
    return [_record(model, task, rollouts, row, base) for row in rows]


def mean_divergence(replays: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the mean KL to the base over recorded completions, in nats each; None without a base."""
    found = [replay["kl"] for replay in replays if "kl" in replay]
    return sum(found) / len(found) if found else None


def _record(
    model: Denoiser, task: Task, rollouts: Rollouts, row: int, base: Denoiser | None
) -> dict[str, Any]:
    places = rollouts.is_completion[row].nonzero().squeeze(1)[: task.completion_length]
    steps = rollouts.revealed_at[row, places]
    likely, ids, apart = alternatives(model, rollouts, row, places, base)
    texts = token_texts(task, torch.cat([rollouts.tokens[row, places], ids.flatten()]))
    options = iter(texts[len(places) :])
    return {
        "row": row,
        "tokens": texts[: len(places)],
        "steps": steps.tolist(),
        "confidence": _rounded(rollouts.log_prob[row, places].exp()),
        "alternatives": [[[next(options), p] for p in _rounded(values)] for values in likely],
    } | ({} if base is None else {"kl": round(apart, 5)})


def alternatives(
    model: Denoiser, rollouts: Rollouts, row: int, places: Int[Tensor, " C"], base: Denoiser | None = None
) -> tuple[Float[Tensor, "C K"], Int[Tensor, "C K"], float]:
    """Return probabilities and ids of the most likely tokens at each place just before it was revealed.

    Also return Σ_i KL(π(· | x_t, i) ‖ π_0(· | x_t, i)) over these places, each at its own state; 0 without a
    base. End tokens that were filled in, whose log π is 0, are not counted.
    """
    tokens, revealed_at = rollouts.tokens[row], rollouts.revealed_at[row]
    steps, state_of = torch.unique(revealed_at[places], return_inverse=True)
    # The state before step s: tokens revealed at step s or later are still masked.
    hidden = rollouts.is_completion[row] & (revealed_at >= steps[:, None])
    states = torch.where(hidden, model.mask_id, tokens)
    attention = rollouts.attention[row].expand_as(states)
    count = min(ALTERNATIVES, model.vocab_size)
    likely = torch.empty(len(places), count, device=tokens.device)
    ids = torch.empty(len(places), count, dtype=torch.long, device=tokens.device)
    apart = torch.zeros((), device=tokens.device)
    for begin in range(0, len(states), TOGETHER):
        part = slice(begin, begin + TOGETHER)
        now = ((state_of >= begin) & (state_of < begin + TOGETHER)).nonzero().squeeze(1)
        at = (state_of[now] - begin) * len(tokens) + places[now]
        padding = where_padded(attention[part])
        log_pi = model(states[part], padding, at)
        if base is not None:
            by_place = (log_pi.exp() * (log_pi - base(states[part], padding, at))).sum(1)
            apart += by_place[rollouts.log_prob[row, places[now]] < 0].sum()
        best = log_pi.topk(count, dim=1)
        likely[now], ids[now] = best.values.exp().float(), best.indices
    return likely, ids, float(apart)


def token_texts(task: Task, ids: Int[Tensor, " N"]) -> list[str]:
    """Decode each token separately; return its number if the task cannot."""
    distinct, place = torch.unique(ids, return_inverse=True)
    try:
        views = [as_text(view) for view in task.read(distinct[:, None])]
    except Exception:  # a user's task may only read whole completions
        views = [str(number) for number in distinct.tolist()]
    return [views[number] for number in place.tolist()]


def as_text(view: Any) -> str:
    """Format a prompt, completion or token, given as rewards see it, as text.

    >>> as_text([(1, 2), None, (3, 4)]), as_text("2+3"), as_text([])
    ('1,2 ? 3,4', '2+3', '')
    """
    if view is None:
        return "?"
    if isinstance(view, dict):  # a message of a conversation
        return str(view.get("content", view))
    if not isinstance(view, (list, tuple)):
        return str(view)
    flat = all(isinstance(part, (int, float)) for part in view)
    return ("," if flat else " ").join(map(as_text, view))


def _rounded(values: Float[Tensor, " N"]) -> list[float]:
    return [round(value, 4) for value in values.tolist()]
