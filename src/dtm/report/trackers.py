"""Send a run's events to TensorBoard, Weights & Biases or Trackio; metrics.jsonl stays the source.

A tracker gets the numbers of every event and a table of samples at each evaluation. A resumed run continues
the same run of the tracker. A tracker that fails causes one warning, and the training continues without it.
"""

from __future__ import annotations

import importlib.util
import os
import uuid
import warnings
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple, Protocol, final

from dtm.config import RunConfig
from dtm.config.serialise import leaves
from dtm.errors import ConfigError, DtmWarning, install_extra, nearest, require
from dtm.evaluation.reveals import as_text
from dtm.report.page.data import clipped
from dtm.report.page.samples import spread_out
from dtm.runs.events import Event, is_number
from dtm.runs.folder import RunFolder, read_object
from dtm.writing import write_json

PREFIX = {
    "evaluation": "held_out",
    "rollouts": "rollouts",
    "step": "train",
    "phase": "phase",
    "audit": "audit",
}
"""Kind of event → prefix of the names of its numbers."""
SAMPLES, CLIP = 64, 500
"""Number of samples in a table, and of characters in a text."""
NAMES = "trackers.json"
"""File of a run's folder with its name in each tracker."""
COLUMNS = ("reward", "prompt", "completion")

Row = tuple[float, str, str]


class Identity(NamedTuple):
    """Identity of a run in a tracker, kept after a resume."""

    id: str
    title: str
    """Title in the tracker: that of --track, or the name of the run's folder."""


def numbers(event: Event) -> dict[str, float]:
    """Return the finite numbers of an event by name; empty for an event without curves.

    >>> numbers(Event("step", 3, {"loss": 0.5, "absorbed": None, "cause": "x"}))
    {'train/loss': 0.5}
    """
    prefix = PREFIX.get(event.kind)
    if prefix is None:
        return {}
    return {f"{prefix}/{name}": float(value) for name, value in event.values.items() if is_number(value)}


def sample_rows(event: Event) -> list[Row]:
    """Select samples of an evaluation, evenly over the order of their rewards."""
    values = [event.values[name] for name in ("rewards", "prompts", "completions")]
    ranked = sorted(zip(*values, strict=True), key=lambda row: -row[0])
    chosen = [ranked[place] for place in spread_out(len(ranked), SAMPLES)]
    return [
        (float(reward), clipped(as_text(prompt), CLIP), clipped(as_text(text), CLIP))
        for reward, prompt, text in chosen
    ]


class Tracker(Protocol):
    """Interface of a tracker, which receives numbers and samples."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Add points to curves."""
        ...

    def show(self, step: int, rows: Sequence[Row]) -> None:
        """Add a table of samples."""
        ...

    def close(self) -> None:
        """Send what is left."""
        ...


@final
class TensorBoard:
    """Event files in ``RUN/tensorboard``; view them with ``tensorboard --logdir RUN``."""

    def __init__(self, folder: RunFolder, config: RunConfig, identity: Identity, step: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        # Points after the resumed step were logged before the stop, and are logged again.
        purge = {} if step == 0 else {"purge_step": step + 1}
        self._writer = SummaryWriter(str(folder.path / "tensorboard"), **purge)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Add points to curves."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def show(self, step: int, rows: Sequence[Row]) -> None:
        """Add the samples as a table in Markdown."""
        lines = [f"| {reward:.4g} | {_cell(prompt)} | {_cell(text)} |" for reward, prompt, text in rows]
        head = [f"| {' | '.join(COLUMNS)} |", "|--:|---|---|"]
        self._writer.add_text("samples", "\n".join([*head, *lines]), step)

    def close(self) -> None:
        """Flush the file."""
        self._writer.close()


@final
class Wandb:
    """A run of Weights & Biases, in the project ``WANDB_PROJECT`` (dtm); supports ``WANDB_MODE=offline``."""

    def __init__(self, folder: RunFolder, config: RunConfig, identity: Identity, step: int) -> None:
        import wandb

        self._table = wandb.Table
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "dtm"),
            dir=str(folder.path),
            id=identity.id,
            name=identity.title,
            resume="allow",
            config=leaves(config),
        )
        # Curves use a custom axis: wandb's step cannot decrease, and that of a resumed run does.
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Add points to curves."""
        self._run.log({"step": step, **values})

    def show(self, step: int, rows: Sequence[Row]) -> None:
        """Add the samples as a table."""
        table = self._table(columns=list(COLUMNS), data=[list(row) for row in rows])
        self._run.log({"step": step, "samples": table})

    def close(self) -> None:
        """Wait until all is sent."""
        self._run.finish()


@final
class Trackio:
    """A run of Trackio, in the project ``TRACKIO_PROJECT`` (dtm); view it with ``trackio show``."""

    def __init__(self, folder: RunFolder, config: RunConfig, identity: Identity, step: int) -> None:
        import trackio

        self._table = trackio.Table
        settings = {name: value if is_number(value) else str(value) for name, value in leaves(config).items()}
        self._run = trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", "dtm"),
            name=f"{identity.title}-{identity.id}",
            resume="allow",
            config=settings,
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Add points to curves."""
        self._run.log(dict(values), step=step)

    def show(self, step: int, rows: Sequence[Row]) -> None:
        """Add the samples as a table."""
        table = self._table(columns=list(COLUMNS), data=[list(row) for row in rows])
        self._run.log({"samples": table}, step=step)

    def close(self) -> None:
        """Wait until all is written."""
        self._run.finish()


TRACKERS: dict[str, type[TensorBoard] | type[Wandb] | type[Trackio]] = {
    "tensorboard": TensorBoard,
    "wandb": Wandb,
    "trackio": Trackio,
}


def require_tracker(track: str) -> None:
    """Raise an error for a tracker, NAME or NAME:TITLE, that is unknown, not installed or not logged in."""
    name = track.partition(":")[0]
    require(name in TRACKERS, f"--track: no tracker {name!r}. {nearest(name, TRACKERS)}")
    require(
        importlib.util.find_spec(name) is not None,
        f"--track {name}: the package {name} is not installed. Run: {install_extra(name)}",
    )
    offline = os.environ.get("WANDB_MODE") in ("offline", "disabled", "dryrun")
    if name == "wandb" and not offline:
        import wandb

        try:
            is_known = bool(wandb.login(prompt=False))
        except Exception as problem:  # the names of its errors differ between releases
            raise ConfigError(f"--track wandb: the login failed: {problem}. {LOGIN}") from None
        require(is_known, f"--track wandb: not logged in. {LOGIN}")


LOGIN = "Run `wandb login`, or set WANDB_MODE=offline and send the run later with `wandb sync`"


class Track:
    """Callback that sends a run's events to a tracker, opened at the first event."""

    def __init__(self, track: str, folder: RunFolder, config: RunConfig) -> None:
        self.folder, self.config = folder, config
        self.name, _, self.title = track.partition(":")
        self._tracker: Tracker | None = None
        self._has_failed = False

    def __call__(self, event: Event) -> None:
        """Send one event."""
        if not self._has_failed:
            self._guarded(lambda: self._send(event))

    def close(self) -> None:
        """Send what is left."""
        if self._tracker is not None and not self._has_failed:
            self._guarded(self._tracker.close)

    def _send(self, event: Event) -> None:
        tracker = self._tracker
        if tracker is None:
            identity = _identity(self.folder, self.name, self.title)
            tracker = self._tracker = TRACKERS[self.name](self.folder, self.config, identity, event.step)
        if event.kind == "samples":
            tracker.show(event.step, sample_rows(event))
        elif values := numbers(event):
            tracker.log(event.step, values)

    def _guarded(self, act: Any) -> None:
        try:
            act()
        except Exception as problem:  # a failed server or disk of the tracker must not stop the training
            self._has_failed = True
            notice = f"{self.name} failed and gets no more events: {problem}. metrics.jsonl has them all"
            warnings.warn(notice, DtmWarning, stacklevel=3)


def _identity(folder: RunFolder, name: str, title: str) -> Identity:
    """Return the identity of this run in a tracker; it keeps its first title."""
    path = folder.path / NAMES
    known = read_object(path) if path.is_file() else {}
    if name not in known:
        known[name] = {"id": uuid.uuid4().hex[:10], "title": title or folder.path.name}
        write_json(path, known)
    found = known[name]
    if isinstance(found, str):  # runs of releases without titles
        return Identity(found, folder.path.name)
    return Identity(**found)


def _cell(text: str) -> str:
    """Escape a text for a table of Markdown."""
    return escape(text).replace("|", "&#124;").replace("\n", "<br>")
