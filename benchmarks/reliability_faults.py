"""Faults that are injected into runs, one at a time, and what becomes of the run.

Each fault ends in one of three ways. "repaired": the same command goes on and ends bit for bit as without the
fault. "refused": one sentence names file or reward, with exit code 2. "broken": a traceback, a hang or
another result, which is what the measurement looks for.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from dtm.writing import remove
from forked import Command, Ended, call
from reliability_kills import digest
from reliability_world import World

BITS = 4
"""Flipped bits in each file of a run."""
CONTENTS = (b"", b"[]", b"null", b"{}", b'{"recipe": 1}', bytes(range(256)), b"[" * 100_000)
"""What damaged JSON and YAML files hold."""
DISKS = (16, 64, 160, 256, 400)
"""Sizes of a full disk, in KiB."""
REWARDS = {
    "hangs": "import time\ndef reward(prompts, completions, **columns): time.sleep(9e9)",
    "holds the interpreter": "import re\n"
    "def reward(prompts, completions, **columns): re.match('(a+)+$', 'a' * 50 + 'b')",
    "forks": "import os, signal\ndef reward(prompts, completions, **columns):\n"
    "    if os.fork() == 0: signal.pause()\n    return [float(len(set(map(str, c)))) for c in completions]",
    "exits": "import os\ndef reward(prompts, completions, **columns): os._exit(3)",
    "kills itself": "import os\ndef reward(prompts, completions, **columns): os.kill(os.getpid(), 9)",
    "raises": "def reward(prompts, completions, **columns): raise KeyError('mine')",
    "returns nan": "def reward(prompts, completions, **columns): return [float('nan')] * len(completions)",
    "returns text": "def reward(prompts, completions, **columns): return ['1'] * len(completions)",
    "returns 10**400": "def reward(prompts, completions, **columns): return [10**400] * len(completions)",
    "returns one number": "def reward(prompts, completions, **columns): return 1.0",
    "sorts its arguments": "def reward(prompts, completions, **columns):\n"
    "    completions.sort(key=str)\n    return [float(len(set(map(str, c)))) for c in completions]",
}


def run(world: World, seed: int) -> dict[str, dict[str, int]]:
    """Inject all faults; count the outcomes by kind."""
    bench = Bench(world, seed)
    found: dict[str, dict[str, int]] = {}
    for kind, outcomes in (
        ("flipped bit in a file of a run", bench.flipped_bits()),
        ("damaged JSON or YAML of a run", bench.damaged_files()),
        ("weights of the base that are not finite numbers", bench.bad_weights()),
        ("reward that misbehaves", bench.bad_rewards()),
        ("two writers of one folder", bench.two_writers()),
        ("full disk", bench.full_disks()),
        ("read-only disk", bench.read_only_disks()),
    ):
        counts = Counter(outcomes)
        found[kind] = {outcome: counts[outcome] for outcome in ("repaired", "refused", "broken")}
        print(f"{kind}: {found[kind]}", flush=True)
    return found


class Bench:
    """A run that was stopped half-way, to damage copies of, and how it should end."""

    def __init__(self, world: World, seed: int) -> None:
        self.world, self.draw = world, random.Random(seed)
        self.run, self.stopped = world.folder / "fault", world.folder / "stopped"
        whole = self._call(world.train(world.folder / "whole"))
        assert whole.outcome == "finished", whole.said
        self.expected = digest(world.folder / "whole")
        shutil.copytree(world.folder / "whole", self.stopped)
        for name in ("summary.json", "model"):
            remove(self.stopped / name)
        newest = max((self.stopped / "checkpoints").glob("step-*"))
        shutil.rmtree(newest)  # the last phase is to be done again

    def flipped_bits(self) -> Iterator[str]:
        """Flip one bit of a file, then continue the run."""
        for path in sorted(file for file in self.stopped.rglob("*") if file.is_file()):
            content = path.read_bytes()
            for _ in range(BITS if content else 0):
                place, bit = self.draw.randrange(len(content)), 1 << self.draw.randrange(8)
                flipped = content[:place] + bytes([content[place] ^ bit]) + content[place + 1 :]
                yield self._continued(path.relative_to(self.stopped), flipped)

    def damaged_files(self) -> Iterator[str]:
        """Replace a file by something else, then continue the run."""
        for path in sorted(
            file for file in self.stopped.rglob("*") if file.suffix in (".json", ".jsonl", ".yaml")
        ):
            for content in CONTENTS:
                yield self._continued(path.relative_to(self.stopped), content)

    def bad_weights(self) -> Iterator[str]:
        """Start from a base with nan, infinite or integer weights."""
        spoiled: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
            lambda value: torch.full_like(value, torch.nan),
            lambda value: value.index_fill(0, torch.tensor([0]), torch.inf),
            lambda value: value.to(torch.int32),
        )
        for name, value in load_file(self.world.base / "model.safetensors").items():
            for spoil in spoiled:
                base = self._fresh("bad-base", self.world.base)
                weights = load_file(base / "model.safetensors")
                save_file(weights | {name: spoil(value)}, base / "model.safetensors")
                yield self._refused(self._call(self.world.train(self._new(), "--model.base", str(base))))

    def bad_rewards(self) -> Iterator[str]:
        """Train with a reward that misbehaves, which must end in a sentence or do no harm."""
        for number, text in enumerate(REWARDS.values()):
            (self.world.folder / f"reward_{number}.py").write_text(text)
            flags = ("--reward", f"reward_{number}.py:reward", "--reward.timeout", "1", "--tilt.final", "1")
            ended = self._call(self.world.train(self._new(), *flags))
            yield {"finished": "repaired"}.get(ended.outcome, ended.outcome)

    def two_writers(self) -> Iterator[str]:
        """Start the same command twice at once; one must be refused, the other end as if alone."""
        for _ in range(10):
            self._fresh(self.run.name, self.stopped)
            both = [Command(self.world.train(self.run), self.world.folder) for _ in range(2)]
            outcomes = sorted(command.wait().outcome for command in both)
            # The second may also come when the first has finished.
            right = outcomes in (["finished", "refused"], ["finished", "finished"])
            yield "repaired" if right and digest(self.run) == self.expected else "broken"

    def full_disks(self) -> Iterator[str]:
        """Train on a disk that fills up, which must be told; then continue on a larger one."""
        for size in DISKS:
            yield from self._on_disk(f"size={size}k", "remount,size=64m", "true")

    def read_only_disks(self) -> Iterator[str]:
        """Continue a run on a disk that became read-only, which must be told; then on a writable one."""
        yield from self._on_disk(
            "size=64m", "remount,rw", f"cp -r {self.stopped} run && mount -o remount,ro ."
        )

    def _on_disk(self, mounted: str, mended: str, before: str) -> Iterator[str]:
        """Two starts of one run, on a small disk and on the mended one: outcomes of both."""
        disk, ends = self.world.folder / "disk", self.world.folder / "ends.json"
        disk.mkdir(exist_ok=True)
        train = " ".join([sys.executable, "-m", "dtm", *self.world.train(Path("run"))])
        script = (
            f"mount -t tmpfs -o {mounted} none {disk} && cd {disk} && {before} && cd {disk} || exit 9\n"
            f"{train} > {ends}.1 2>&1; echo $?\nmount -o {mended} {disk} || exit 9\n"
            f"{train} > {ends}.2 2>&1; echo $?\ncp -r run {self._new()}"
        )
        done = subprocess.run(
            ["unshare", "--map-root-user", "--mount", "sh", "-c", script],
            capture_output=True,
            text=True,
            check=False,
        )
        codes = [int(code) for code in done.stdout.split()]
        if len(codes) < 2:
            raise RuntimeError(f"no disk could be mounted: {done.stderr}")
        first, second = (
            Ended(code, Path(f"{ends}.{number}").read_text(errors="replace"))
            for number, code in enumerate(codes, start=1)
        )
        yield self._refused(first)
        right = second.outcome == "finished" and digest(self.run) == self.expected
        yield "repaired" if right else self._broken(second)

    def _continued(self, name: Path, content: bytes) -> str:
        """Damage a file of the stopped run, and continue it."""
        self._fresh(self.run.name, self.stopped)
        (self.run / name).write_bytes(content)
        ended = self._call(self.world.train(self.run))
        if ended.outcome != "finished":
            return ended.outcome if ended.outcome == "refused" else self._broken(ended)
        return "repaired" if digest(self.run) == self.expected else self._broken(ended)

    def _refused(self, ended: Ended) -> str:
        return "refused" if ended.outcome == "refused" else self._broken(ended)

    def _broken(self, ended: Ended) -> str:
        print(f"broken, exit code {ended.code}:\n{ended.said[-1500:]}", flush=True)
        return "broken"

    def _call(self, arguments: list[str]) -> Ended:
        return call(arguments, self.world.folder)

    def _new(self) -> Path:
        remove(self.run)
        return self.run

    def _fresh(self, name: str, source: Path) -> Path:
        """A copy of a folder."""
        remove(self.world.folder / name)
        return Path(shutil.copytree(source, self.world.folder / name))
