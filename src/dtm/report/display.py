"""Progress of a run: one live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from dtm.config import RunConfig
from dtm.config.budget import SPENT, Budget
from dtm.evaluation.evaluate import Evaluation
from dtm.loop.base import Loop, number
from dtm.runs.events import Event

PLAIN_EVERY = 10.0
"""Seconds between printed lines without a terminal."""


class Display:
    """Callback that shows a run: phase, tilt, reward, absorbed share, ESS, rollouts per second, time left."""

    def __init__(self, config: RunConfig, loop: Loop, console: Console | None = None) -> None:
        self.config, self.loop = config, loop
        self.budget = None if config.budget is None else Budget.parse(config.budget)
        self.console = console or Console()
        self.latest: dict[str, Any] = {"reward": None, "per_second": None, "audit": ""}
        self.begin = self.last_printed = time.perf_counter()
        self.start: float | None = None
        self._live = Live(console=self.console, auto_refresh=False) if self.console.is_terminal else None

    def __enter__(self) -> Display:
        if self._live:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.update(Text(""), refresh=True)
            self._live.stop()

    def __call__(self, event: Event) -> None:
        """Handle an event; print a line for important ones."""
        values = event.values
        if event.kind == "rollouts":
            self.latest |= {"reward": values["reward"], "per_second": values["per_second"]}
        elif event.kind == "audit":
            self._audit(values)
        elif event.kind == "step":
            self.latest |= values
            self._tick(event.step)
        elif event.kind == "phase":
            line = self.loop.closing(values)
            if line is not None:
                self._say(line)
        elif event.kind == "evaluation":
            shown = {k: v for k, v in values.items() if k not in ("tilt", "seconds", *SPENT)}
            measures = "  ".join(f"{k} {v:.3f}" for k, v in shown.items())
            self._say(f"{self.loop.place(values['tilt'])} held out, {self._sampled()}:  {measures}")
        elif event.kind == "resumed":
            self._say(f"resumed at step {event.step}, {self.loop.place(values['tilt']).strip()}")
        elif event.kind == "stopped":
            self._say(f"stopped: {values['reason']}")

    def _sampled(self) -> str:
        """Say how evaluations draw answers; rollouts may be drawn at another temperature."""
        temperature = self.config.evaluation.temperature
        if temperature is None:
            temperature = self.config.decoding.temperature
        return f"temperature {temperature:g}"

    def _audit(self, values: Mapping[str, Any]) -> None:
        """Show the audit of decoding in the live line; print a fallback on a separate line."""
        self.latest["audit"] = (
            f"  {values['agreement']:.0%} as exact decoding, reward {values['reward_shift']:+.3f}"
        )
        if values["falls_back"] is not None:
            self.latest["audit"] = ""
            self._say(f"exact decoding from here on: {values['falls_back']}")

    def _tick(self, step: int) -> None:
        now = time.perf_counter()
        if self._live:
            self._live.update(Text(self._line(step)), refresh=True)
        elif now - self.last_printed >= PLAIN_EVERY:
            self.last_printed = now
            self.console.print(self._line(step), highlight=False)

    def _line(self, step: int) -> str:
        v = self.latest
        fraction = v["phase_step"] / self.loop.steps
        if self.budget is None:
            done = (v["tilt"] + v["h"] * fraction) / self.loop.final
        else:
            done = min(self.budget.share(v), 1.0)
        if self.start is None:
            self.start = done  # time before a resume does not count
        spent = time.perf_counter() - self.begin
        left = f"{_clock(spent * (1 - done) / (done - self.start))} left" if done > self.start else ""
        speed = f"{number(v['per_second'], 0)} rollouts/s{v['audit']}"
        return f"  {self.loop.status(v, step)}  {speed}  {left}"

    def _say(self, text: str) -> None:
        self.console.print(text, highlight=False)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}" if minutes >= 60 else f"{minutes}:{rest:02d}"


def print_pretraining(event: Event, console: Console | None = None) -> None:
    """Print the progress of a pretraining: the held-out bound, steps per second, time left."""
    v = event.values
    if event.kind == "measuring":
        (console or Console()).print(f"measuring {', '.join(v['tasks'])} on {v['prompts']} prompts each")
        return
    left = _clock((v["steps"] - event.step) / v["steps_per_second"])
    speed = f"{v['steps_per_second']:.3g} steps/s"
    if "tokens_per_second" in v:
        speed += f"  {v['tokens_per_second']:,.0f} tokens/s"
    (console or Console()).print(
        f"step {event.step}/{v['steps']}  loss {v['loss']:.3f}  held-out bound {v['held_out']:.3f} nats  "
        f"{speed}  {left} left",
        highlight=False,
    )


def summary_table(summary: dict[str, Any]) -> Table:
    """Return a table of base, tuned and best possible measures, with the share of the gap closed."""
    closed = summary.get("gap_closed")
    title = f"{summary['recipe']}, seed {summary['seed']}: {summary['finished']}"
    before, after = (summary[model]["reward"] for model in ("base", "tuned"))
    gain = "" if closed is None else f"; {closed:.0%} of the gap to the best possible reward closed"
    if after < before:
        gain = f"; reward fell ({before:.3f} → {after:.3f})"
    caption = f"{summary['minutes']:.1f} minutes{gain}"
    table = Table(_names(), "base", "tuned", "best possible", title=title, caption=caption)
    for name, value in summary["base"].items():
        best = f"{summary['best']:.3f}" if name == "reward" and "best" in summary else ""
        table.add_row(name, f"{value:.3f}", f"{summary['tuned'][name]:.3f}", best)
    return table


def measures_table(results: dict[str, Evaluation]) -> Table:
    """Return a table with a column per measured model."""
    first = next(iter(results.values()))
    table = Table(_names(), *results, "best possible")
    for name in first.measures:
        best = f"{first.best:.3f}" if name == "reward" and first.best is not None else ""
        table.add_row(name, *(f"{result.measures[name]:.3f}" for result in results.values()), best)
    return table


def _names() -> Column:
    """A column for the names of measures, which are never cut: two may begin alike."""
    return Column("held out", overflow="fold")
