"""Damaged files and command lines of others: every command must end in a result or in a sentence.

Models (configuration, weights, tokenizer), YAML files, data rows and flags are changed at random; the command
that reads them is run. A traceback, a signal or a hang counts as broken. Without damage every command works.
"""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dtm.cli import COMMANDS
from dtm.writing import remove
from forked import Ended, call
from reliability_world import World

VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 3, 10**9, 10**400, 0.5, float("nan"), float("inf"), "", "x", "1e9", [], [1]),
    *({}, {"a": 1}, "\0", "é" * 99, [[[]]], "{{ 1/0 }}", "{% for x in range(10**9) %}{% endfor %}"),
)
"""What a field may hold that somebody else wrote."""
FLAGS = (
    "--seed",
    "--tilt.step",
    "--tilt.final",
    "--optimizer.lr",
    "--model.base",
    "--reward",
    "--task",
    "--method",
)
MORE = (
    "--budget",
    "--prompts",
    "--out",
    "--config",
    "--vary",
    "--methods",
    "--data",
    "--length",
    "--json",
    "--jobs",
)
TEXTS = (
    "",
    "-1",
    "0",
    "nan",
    "inf",
    "1e400",
    "x",
    "auto",
    "\udcff",
    "..",
    "/dev/null",
    "/dev/full",
    "a=b",
    "None",
    "[",
    "10" * 99,
)


Draw = random.Random | None
"""Random numbers that decide the damage; None: there is none."""


def run(world: World, seed: int, scale: float = 1.0) -> dict[str, dict[str, int]]:
    """Try all kinds of bad input; count the outcomes of each."""
    draw, found = random.Random(seed), dict[str, dict[str, int]]()
    kinds: dict[str, tuple[int, Callable[[World, Draw], Ended]]] = {
        "a model of ours": (150, our_model),
        "a model of the hub, with its tokenizer": (300, hub_model),
        "a YAML file": (100, yaml_file),
        "data rows": (100, data_rows),
        "command lines": (250, command_line),
    }
    for kind, (count, attempt) in kinds.items():
        whole = attempt(world, None)
        assert whole.outcome == "finished", f"{kind} without damage: {whole.said}"
        ends = [attempt(world, draw) for _ in range(max(1, round(scale * count)))]
        for ended in ends:
            if ended.has_traceback:
                print(f"{kind}: exit code {ended.code}\n{ended.said[-1500:]}", flush=True)
        counts = Counter(
            "broken" if ended.has_traceback else "said" if ended.code else "done" for ended in ends
        )
        found[kind] = {"tried": len(ends), **{name: counts[name] for name in ("done", "said", "broken")}}
        print(f"{kind}: {found[kind]}", flush=True)
    return found


def our_model(world: World, draw: Draw) -> Ended:
    """A base of ours with a damaged file."""
    folder = damaged(world.base, world, draw)
    return call(world.train(world.folder / "never", "--model.base", str(folder), "--dry-run"), world.folder)


def hub_model(world: World, draw: Draw) -> Ended:
    """A public model with a damaged file, asked something."""
    folder = damaged(world.adapted, world, draw)
    asked = ("--prompt", "the sum", "--length", "8", "--block", "8", "--device", "cpu")
    return call(["sample", str(folder), *asked], world.folder)


def yaml_file(world: World, draw: Draw) -> Ended:
    """Settings with a damaged line."""
    path = world.folder / "damaged.yaml"
    path.write_bytes(spoiled(world.settings, draw))
    out = str(world.folder / "never")
    return call(["train", "maze-small", "--config", str(path), "--out", out, "--dry-run"], world.folder)


def data_rows(world: World, draw: Draw) -> Ended:
    """Rows to grade, of which some are damaged."""
    path = world.folder / "damaged.jsonl"
    row: dict[str, Any] = {"question": "1 + 1", "ground_truth": 2.0, "generation": "<answer>2</answer>"}
    bad = row if draw is None else row | {draw.choice(list(row)): draw.choice(VALUES)}
    path.write_text("\n".join(map(json.dumps, (row, bad, row))))
    if draw is not None and draw.random() < 0.5:
        path.write_bytes(spoiled(path, draw))
    return call(["grade", "gsm8k", str(path)], world.folder)


def command_line(world: World, draw: Draw) -> Ended:
    """A command with a few random flags; the ones that would train for long only plan."""
    if draw is None:
        return call(["recipes"], world.folder)
    name = draw.choice([name for name in COMMANDS if name not in ("chat", "verify")])
    words = [draw.choice(["maze-small", "sudoku-mini", str(world.base), str(world.settings), *TEXTS])]
    for _ in range(draw.randrange(4)):
        words += [draw.choice([*FLAGS, *MORE]), draw.choice(TEXTS)]
    planned = ["--dry-run"] if name in ("train", "pretrain", "adapt", "sweep", "compare") else []
    return call([name, *words, *planned], world.folder)


def damaged(folder: Path, world: World, draw: Draw) -> Path:
    """A copy of a model with one damaged file."""
    remove(world.folder / "damaged")
    copy = Path(shutil.copytree(folder, world.folder / "damaged"))
    if draw is not None:
        path = draw.choice(sorted(file for file in copy.rglob("*") if file.is_file()))
        path.write_bytes(spoiled(path, draw))
    return copy


def spoiled(path: Path, draw: Draw) -> bytes:
    """The contents of a file with a changed field, a flipped bit, a hole, or an end that comes too early."""
    content = path.read_bytes()
    if draw is None:
        return content
    kind = draw.randrange(5)
    if kind < 2 and path.suffix == ".json":
        fields = json.loads(content)
        holder, name = draw.choice(list(places(fields)))
        if draw.random() < 0.2:
            del holder[name]
        else:
            holder[name] = draw.choice(VALUES)
        return json.dumps(fields).encode()
    place = draw.randrange(len(content))
    if kind == 2:
        return content[:place]
    if kind == 3:
        return content[:place] + content[place + draw.randrange(1, 9) :]
    return content[:place] + bytes([content[place] ^ 1 << draw.randrange(8)]) + content[place + 1 :]


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every field of a JSON value, with the object or list that holds it."""
    entries = value.items() if isinstance(value, dict) else enumerate(value)
    for name, inner in entries:
        yield value, name
        if isinstance(inner, dict | list):
            yield from places(inner)
