"""Kills −9 at random moments of train, pretrain, adapt, compare and sweep; the end must be that of no kill.

A run is killed a few times on its way, each time started again by the same command, and then compared bit for
bit with a run that nobody has killed: the weights of all models, and everything in the last checkpoints.
"""

from __future__ import annotations

import hashlib
import os
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from forked import Command, Ended, call
from reliability_world import World

PER_RUN = 8
"""Kills of one run, before it may end."""
LATEST = 0.7
"""Latest moment of a kill, as a share of the time of a whole run: a continued one has less to do."""
PATIENCE = 30.0
"""Seconds in which processes of a killed command must have ended."""


@dataclass(frozen=True, slots=True)
class Campaign:
    """A command that is killed and started again."""

    name: str
    arguments: Callable[[Path], list[str]]
    """The command for a run's folder; the same at every start."""
    kills: int


def campaigns(world: World, scale: float = 1.0) -> list[Campaign]:
    """All commands that write a run, and how often each is killed."""
    counts: Mapping[str, int] = {"train": 80, "pretrain": 60, "adapt": 40, "compare": 16, "sweep": 16}
    commands: Mapping[str, Callable[[Path], list[str]]] = {
        "train": world.train,
        "pretrain": world.pretrain,
        "adapt": world.adapt,
        "compare": world.compare,
        "sweep": world.sweep,
    }
    return [Campaign(name, commands[name], max(1, round(scale * count))) for name, count in counts.items()]


def run(campaign: Campaign, world: World, seed: int) -> dict[str, Any]:
    """Kill a command until enough kills were made; count what they cost."""
    draw = random.Random(f"{seed} {campaign.name}")
    begin = time.perf_counter()
    expected = finish(campaign, world.folder / f"{campaign.name}-whole", world)
    whole = time.perf_counter() - begin
    kills = runs = equal = refused = 0
    while kills < campaign.kills:
        out = world.folder / f"{campaign.name}-{runs}"
        for _ in range(min(PER_RUN, campaign.kills - kills)):
            command = Command(campaign.arguments(out), world.folder)
            moment = time.perf_counter() + draw.uniform(0, LATEST * whole)
            while time.perf_counter() < moment and not command.has_ended():
                time.sleep(0.002)
            if command.has_ended():
                refused += not succeeded(command.wait())
            else:
                command.kill(everything=draw.random() < 0.5)
                kills += 1
            wait_for_children(out)
        equal += expected is not None and finish(campaign, out, world) == expected
        runs += 1
    print(f"{campaign.name}: {kills} kills, {equal} of {runs} runs end bit for bit as without", flush=True)
    return {"kills": kills, "runs": runs, "equal": equal, "refused_starts": refused}


def finish(campaign: Campaign, out: Path, world: World) -> str | None:
    """Let the command end; the digest of its folder, or None if it fails."""
    ended = call(campaign.arguments(out), world.folder)
    if succeeded(ended):
        return digest(out)
    print(f"{campaign.name} in {out} ended with {ended.code}:\n{ended.said[-2000:]}", flush=True)
    return None


def succeeded(ended: Ended) -> bool:
    """Whether a run has finished."""
    return ended.outcome == "finished"


def wait_for_children(out: Path) -> None:
    """Wait until the runs of a killed sweep or comparison have saved themselves and ended."""
    end = time.perf_counter() + PATIENCE
    while any(_mentions(process, out) for process in Path("/proc").glob("[0-9]*")):
        if time.perf_counter() > end:
            raise RuntimeError(
                f"a process of {out} is still alive {PATIENCE:g} s after its parent was killed"
            )
        time.sleep(0.05)


def _mentions(process: Path, out: Path) -> bool:
    try:
        return process.name != str(os.getpid()) and f"{out}/".encode() in (process / "cmdline").read_bytes()
    except OSError:
        return False


def digest(out: Path) -> str:
    """A hash of the weights of all models below a folder, and of the tensors of their last checkpoints."""
    found = hashlib.sha256()
    last = {folder: max(folder.glob("step-*"), default=folder) for folder in out.rglob("checkpoints")}
    for path in sorted(out.rglob("*.safetensors")):
        if path.parent.name == "model" or path.parent in last.values():
            found.update(str(path.relative_to(out)).encode() + path.read_bytes())
    return found.hexdigest()
