"""The fingerprint of a run: all that determines its result except the method; comparable runs share it.

A run writes it at its start (``fingerprint.json``), so that later changes of data, base or reward are
detected. Contents of base, prompts and reward are compared, not their names or paths.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

from dtm import tasks
from dtm.config.serialise import leaves
from dtm.engine.collect import prompts_in_order
from dtm.evaluation.evaluate import held_out
from dtm.evaluation.fingerprint import (
    PACKAGES,
    attention_kernels,
    code_version,
    digest,
    model_identity,
    rules_version,
)
from dtm.loop.assembly import Assembly
from dtm.loop.registry import is_own, is_under
from dtm.records import Prompts
from dtm.runs.environment import environment, version
from dtm.tasks.rewards import Scorer

PLACES = ("recipe", "seed", "device", "model.base", "task.data_dir", "task.data", "checkpoint", "pretrain")
"""Fields and sections that do not change a result, or whose contents are hashed instead."""
GROUPS = {
    "settings": "settings that all share",
    "items": "the held-out prompts",
    "training": "the training prompts",
    "reward": "the reward",
    "answers": "how answers are read",
    "model": "the base",
    "numerics": "arithmetic",
}
"""Groups of a fingerprint that determine the result of a run."""


def run_fingerprint(assembly: Assembly) -> dict[str, dict[str, Any]]:
    """Return the fingerprint in groups, which `dtm.evaluation.explain` describes."""
    config, task, placement = assembly.config, assembly.task, assembly.placement
    evaluation, machine = config.evaluation, environment()
    asked = prompts_in_order(task, 0, config.replay.prompts, config.replay.prompts, config.seed)
    splits = {evaluation.split: evaluation, "test": replace(evaluation, split="test")}
    held = [[split, *_facts(held_out(task, asking))] for split, asking in splits.items()]
    return {
        "settings": {name: value for name, value in leaves(config).items() if _is_shared(name)},
        "items": {"contents": digest(held)},
        "training": {"order": digest([_facts(asked)])},
        "reward": {"function": assembly.scorer.name, "source": _source(assembly.scorer)},
        "answers": {"version": rules_version()},
        "model": {} if assembly.base_folder is None else model_identity(assembly.base_folder),
        "numerics": {
            "precision": placement.precision,
            "attention": attention_kernels(placement.device),
        },
        "packages": {"commit": machine["commit"], **{name: version(name) for name in PACKAGES}},
        "hardware": {name: machine[name] for name in ("processor", "threads", "gpu")},
    }


def _is_shared(field: str) -> bool:
    return not is_own(field) and not is_under(field, PLACES)


def _facts(prompts: Prompts) -> list[Any]:
    """Return tokens and columns of each prompt, in order."""
    rows = zip(prompts.tokens.tolist(), prompts.attention.tolist(), strict=True)
    tokens = [[token for token, real in zip(*row, strict=True) if real] for row in rows]
    columns = {name: [str(value) for value in values] for name, values in prompts.columns.items()}
    return [tokens, columns]


def _source(scorer: Scorer) -> str | None:
    """Hash the code of a reward function without the functions it calls; for a task's own, all task code."""
    module = str(getattr(scorer.function, "__module__", ""))
    if module.startswith(f"{tasks.__name__}."):
        return code_version(Path(tasks.__path__[0]).rglob("*.py"))
    try:
        return digest([inspect.getsource(scorer.function)])
    except (OSError, TypeError):
        return None
