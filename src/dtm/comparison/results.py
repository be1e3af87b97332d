"""Results of a comparison: a row per run, intervals over seeds, a table, a figure and JSON.

Test prompts are used only here, for models that were chosen without them; a run's folder keeps the results.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import fmean, stdev
from typing import Any

from matplotlib.figure import Figure

from dtm import api
from dtm.api import Run
from dtm.comparison.audit import audited, read_fingerprint
from dtm.comparison.sampled import Beside, beside
from dtm.comparison.settings import label, own_settings
from dtm.comparison.tuning import Trial, tuning_notes
from dtm.config.budget import SPENT, Budget
from dtm.report.figures import PLAIN, comparison_figure, diversity_figure
from dtm.runs.environment import environment
from dtm.runs.folder import kept_json

COSTS = (*SPENT, "peak_memory")
AXES = {
    "seconds": "seconds of rollouts and updates",
    "tokens": "tokens through the models",
    "flops": "floating-point operations",
}
METHOD = (
    "mean over seeds, with the 95 % interval mean ± t·s/√n: s the standard deviation of n seeds, t Student's "
    "with n − 1 degrees of freedom. It covers other seeds, not other test prompts; a single seed has none."
)


@dataclass(frozen=True, slots=True)
class Row:
    """One run of a comparison."""

    method: str
    seed: int
    run: str
    """Folder of the run."""
    finished: str
    """Reason for the run's end: its budget, or a plateau before it."""
    test: dict[str, float]
    """Measures on the test prompts."""
    validation: dict[str, float]
    """The last of the run's own evaluations."""
    cost: dict[str, int | float]
    """Seconds, tokens and FLOPs spent, and peak memory in bytes."""
    curve: list[dict[str, Any]]
    """The run's own evaluations, each with the cost up to it."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """All rows, and the settings that they share."""

    budget: Budget
    rows: list[Row]
    base: dict[str, float]
    """Measures of the base on the test prompts."""
    best: float | None
    """Highest possible mean reward on the validation prompts, if the task knows it."""
    settings: dict[str, dict[str, Any]]
    """Each method's own fields."""
    shared: dict[str, Any]
    """The fingerprint that all runs have in common."""
    notes: list[str]
    """Notes for the reader of the table."""
    trials: list[Trial] = field(default_factory=list)
    beside: Beside | None = None
    """Steered sampling of the base, with --also."""

    @property
    def methods(self) -> list[str]:
        """Names of the methods, in the order in which they were given."""
        return list(self.settings)

    @property
    def seeds(self) -> list[int]:
        """Seeds of the runs, the same for all methods."""
        return [row.seed for row in self.of(self.methods[0])]

    def of(self, method: str) -> list[Row]:
        """The rows of one method."""
        return [row for row in self.rows if row.method == method]

    def summary(self) -> dict[str, dict[str, dict[str, float | None]]]:
        """Mean and interval of every measure and cost, by method."""
        return {
            name: {
                measure: interval([float({**row.test, **row.cost}[measure]) for row in self.of(name)])
                for measure in (*self.base, *COSTS)
            }
            for name in self.methods
        }

    def against_first(self) -> dict[str, dict[str, float | None]]:
        """Mean and interval of each other method's reward minus that of the first, paired by seed.

        Runs of one seed have the same prompts in the same order, and all have the same test prompts.
        """
        first, *others = self.methods
        before = {row.seed: row.test["reward"] for row in self.of(first)}
        return {
            name: interval([row.test["reward"] - before[row.seed] for row in self.of(name)])
            for name in others
        }

    def figures(self) -> dict[str, Figure]:
        """Plot validation measures against the cost, and diversity against the reward, by name of the file.

        Curves are means over the seeds of a method; bands are their range.
        """
        curves = {name: [row.curve for row in self.of(name)] for name in self.methods}
        spent, axis = (
            f"spent_{self.budget.unit}",
            f"{AXES[self.budget.unit]} (measured on validation prompts)",
        )
        figures = {"compare": comparison_figure(curves, self.best, axis, styles=PLAIN, amount=spent)}
        diversity = diversity_figure(curves, spent)
        return figures if diversity is None else figures | {"diversity": diversity}

    def to_json(self, command: str) -> dict[str, Any]:
        """Return all results as JSON values, with the command and the environment that made them."""
        return {
            "command": command,
            "commit": environment()["commit"],
            "machine": {name: environment()[name] for name in ("gpu", "processor", "python", "torch")},
            "budget": asdict(self.budget),
            "seeds": self.seeds,
            "method": METHOD,
            "memory": memory_words(self),
            "base": self.base,
            "steered": None if self.beside is None else asdict(self.beside),
            "summary": self.summary(),
            "against_first": self.against_first(),
            "settings": self.settings,
            "notes": self.notes,
            "tuning": [asdict(trial) for trial in self.trials],
            "fingerprint": self.shared,
            "rows": [asdict(row) for row in self.rows],
        }


def with_sampling(
    comparison: Comparison, runs: Sequence[Run], also: str | None, tilt: float | None
) -> Comparison:
    """Add steered samples of the base to a comparison; ``also`` as in best-of-16,smc-16, or None."""
    if also is None:
        return comparison
    found = beside(runs, also, tilt, comparison.seeds)
    spent = fmean(float(row.cost["spent_tokens"]) for row in comparison.rows)
    return replace(comparison, beside=found, notes=[*comparison.notes, *found.notes(spent)])


def gather(runs: Sequence[Run], trials: Sequence[Trial] = ()) -> Comparison:
    """Compare finished runs, which may differ only in the method and the seed."""
    entries, notes = audited(runs)
    rows = [_row(run) for of_seeds in entries.values() for _, run in sorted(of_seeds.items())]
    configs = {name: next(iter(of_seeds.values())).config for name, of_seeds in entries.items()}
    first = next(iter(next(iter(entries.values())).values()))
    budget = Budget.parse(str(first.config.budget))
    early = [
        f"{row.method}, seed {row.seed}: stopped with {budget.share(row.cost):.0%} of its budget spent, "
        f"{row.finished} (evaluation.patience)"
        for row in rows
        if budget.share(row.cost) < 1
    ]
    fell_back = [
        f"{run.path} changed to exact rollouts: {run.summary['exact_because']}"
        for of_seeds in entries.values()
        for run in of_seeds.values()
        if run.summary.get("exact_because")
    ]
    return Comparison(
        budget,
        rows,
        _test_of_base(first),
        first.events("evaluation")[0].get("best"),
        {name: own_settings(config) for name, config in configs.items()},
        read_fingerprint(first),
        [*notes, *early, *fell_back, *tuning_notes(trials)],
        list(trials),
    )


def interval(values: Sequence[float]) -> dict[str, float | None]:
    """Return the mean and the ends of its 95 % interval by Student's t, None for a single value.

    >>> round(interval([1.0, 2.0, 3.0])["high"], 3)
    4.484
    """
    from scipy.stats import t  # slow to import

    mean = fmean(values)
    if len(values) < 2:
        return {"mean": mean, "low": None, "high": None}
    half = float(t.ppf(0.975, len(values) - 1)) * stdev(values) / math.sqrt(len(values))
    return {"mean": mean, "low": mean - half, "high": mean + half}


def memory_words(comparison: Comparison) -> str:
    """Return the words for the way in which peak memory was measured."""
    on_gpu = comparison.shared["numerics"]["attention"].startswith("cuda")
    return "allocated by torch on the GPU" if on_gpu else "resident set of the process"


def _row(run: Run) -> Row:
    summary, config = run.summary, run.config
    return Row(
        label(config.method.name),
        config.seed,
        str(run.path),
        summary["finished"],
        _test_of_run(run),
        summary["tuned"],
        {name: summary[name] for name in COSTS},
        [{k: v for k, v in event.items() if k != "event"} for event in run.events("evaluation")],
    )


def _test_of_run(run: Run) -> dict[str, float]:
    return kept_json(run.path / "test.json", lambda: _tested(run, run.model))


def _test_of_base(run: Run) -> dict[str, float]:
    """Measure the base of a run with the run's decoder."""
    return kept_json(
        run.path / "test-base.json",
        lambda: _tested(run, run.assembly.base),
    )


def _tested(run: Run, model: Any) -> dict[str, float]:
    assembly = run.assembly
    return api.measure(assembly, model, replace(assembly.config.evaluation, split="test")).measures
