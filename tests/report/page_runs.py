"""Run folders for pages, written by hand: any text, any reward, any event."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dtm.config import LanguageConfig, RunConfig
from dtm.report.page.log import Log
from dtm.runs.folder import RunFolder
from dtm.writing import write_json

SPENT = {"spent_seconds": 1.0, "spent_tokens": 10, "spent_flops": 10, "seconds": 2.0}
HOSTILE = [
    "</script><script>document.title = 'owned'</script>",
    "<img src=x onerror=\"document.title = 'owned'\">",
    "<!--<script>",
    "[[script]] [[data]] ]]> ${document.title = 'owned'}",
    "evil\u202egnp.exe\u2066 hidden\u200b \x00\x1b[31m \u2028 \ufeff",
    "ä" * 100_000,
    "javascript:alert(1)\n\"'&amp;&lt;",
]


def write_run(
    path: Path,
    evaluations: Sequence[Sequence[Mapping[str, Any]]],
    steps: int = 20,
    task: Any = None,
    summary: Mapping[str, Any] | None = None,
    **settings: Any,
) -> RunFolder:
    """A run with an evaluation every so many steps; each evaluation is a list of sample rows."""
    config = RunConfig(recipe="mine", task=task or LanguageConfig(kind="custom", data="x.jsonl"), **settings)
    folder = RunFolder.create(config, "train", path)
    folder.samples.mkdir()
    each = max(steps // max(len(evaluations) - 1, 1), 1)
    lines = [
        {
            "event": "step",
            "step": k + 1,
            "phase": 0,
            "tilt": 0.0,
            "h": 1.0,
            "loss": 1 / (k + 1),
            "ess": 0.5,
            **SPENT,
        }
        for k in range(steps)
    ]
    for place, rows in enumerate(evaluations):
        write_samples(folder, each * place, float(place), rows)
        mean = sum(row["reward"] for row in rows) / len(rows)
        lines.append(
            {"event": "evaluation", "step": each * place, "tilt": float(place), "reward": mean, **SPENT}
        )
        if place:
            phase = {"phase": place - 1, "h": 1.0, "steps": each, "absorbed": 0.8, "absorbed_error": 0.1}
            where = {"event": "phase", "step": each * place, "tilt": place - 1.0, "ess": 0.5, "reward": mean}
            lines.append(
                {**where, **phase, "reason": "absorbed", "cause": None, "peak_memory": 2**30, **SPENT}
            )
    folder.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    if summary is not None:
        write_json(folder.summary, summary)
    return folder


def read_log(path: Path, rows: Sequence[Mapping[str, Any]]) -> Log:
    """The log of some rows, without samples."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Log.read(path, points=300, interval=lambda step, tilt: (None, None))


def write_samples(folder: RunFolder, step: int, tilt: float, rows: Sequence[Mapping[str, Any]]) -> None:
    path = folder.samples / f"step-{step:08d}-tilt-{tilt:09.4f}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def rows_of(texts: Sequence[str], rewards: Sequence[float], prompt: str = "Say it") -> list[dict[str, Any]]:
    pairs = zip(texts, rewards, strict=True)
    return [{"prompt": prompt, "completion": text, "reward": reward} for text, reward in pairs]


def data_in(page: str) -> dict:
    """The data inside a page, read as a browser does: up to the first closing tag."""
    return json.loads(re.search(r'id="data">(.*?)</script', page, re.DOTALL)[1])
