"""Write a model card: a README with the model's origin, settings and results."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from dtm.config import LanguageConfig, MazeConfig, MiniConfig, RunConfig
from dtm.config.registry import load_method_class
from dtm.evaluation.fingerprint import digest
from dtm.loop.fingerprint import GROUPS
from dtm.loop.registry import make_loop
from dtm.report.outcome import outcome_of, sentence
from dtm.tasks.language.own import HUB, HubName, describe_source

Form = Literal["adapter", "merged", "weights"]
"""Contents of the folder."""
USES = {
    "adapter": "The folder is a PEFT adapter with the module names of its base: peft loads it over that "
    "model, and so do `dtm eval` and `dtm sample`.",
    "merged": "The adapter is merged into the base's weights; load the folder with `dtm.load_model(folder)`.",
    "weights": "Load it with `dtm.load_model(folder)`.",
}


CURVES, FINGERPRINT = "curves.png", "fingerprint.json"
"""Other files in the card's folder."""


@dataclass(frozen=True, slots=True)
class ExportRecords:
    """Records about the model that an export has in addition to it."""

    fingerprint: Mapping[str, Mapping[str, Any]]
    """Fingerprint of the run, in groups; empty: not recorded."""
    curves: bool
    """Whether there is a figure of the held-out measures."""


def model_card(
    config: RunConfig,
    summary: Mapping[str, Any],
    form: Form = "weights",
    results: Sequence[Mapping[str, Any]] = (),
    beside: ExportRecords | None = None,
) -> str:
    """Return the card of a run's model; ``results`` are those of published protocols (`dtm eval --task`)."""
    sections = [
        _front_matter(config, form),
        f"# {config.recipe}, {_how(config, summary)}",
        "\n".join(f"- {line}" for line in _facts(config, summary)),
        _held_out(summary),
        f"![Held-out measures against the optimiser's steps]({CURVES})" if beside and beside.curves else "",
        _published(results),
        _fingerprint({} if beside is None else beside.fingerprint),
        f"{USES[form]} `config.yaml` of the run has every setting.",
    ]
    return "\n\n".join(section for section in sections if section) + "\n"


def _how(config: RunConfig, summary: Mapping[str, Any]) -> str:
    if "tuned" not in summary:
        return "pretrained"
    if outcome_of(summary)["kind"] == "learnt":
        return f"tuned by {config.method.name}"
    if summary["outcome"]["kind"] == "not measurable":
        return f"trained by {config.method.name}, without a measurable gain"
    return "not tuned: the run has learnt nothing"


def _front_matter(config: RunConfig, form: Form) -> str:
    """Return the front matter for the hub, without the name of a base in a local folder."""
    base = str(config.model.base)
    named = (
        [f"base_model: {base}"] if re.fullmatch(r"[\w.-]+/[\w.-]+", base) and not Path(base).exists() else []
    )
    library = ["library_name: peft"] if form == "adapter" else []
    data = str(getattr(config.task, "data", None))
    rows = [f"datasets: [{HubName.parse(data).name}]"] if data.startswith(HUB) else []
    tags = "tags: [discrete-tilt-matching, masked-diffusion]"
    return "\n".join(["---", *named, *rows, *library, tags, "---"])


def _facts(config: RunConfig, summary: Mapping[str, Any]) -> list[str]:
    data = f"data: {_data(config)}"
    made = f"seed {config.seed}, commit {summary.get('commit')}"
    if "tuned" not in summary:
        steps = config.pretrain.steps
        return [
            "base: none, trained from scratch",
            f"trained on the evidence bound, {steps} steps",
            data,
            made,
        ]
    method = load_method_class(config.method.name)(config.method)
    fields = [f"{name} {value}" for name, value in asdict(config.method).items() if name != "name"]
    reached = f"{make_loop(config, method).reached(summary['tilt'])} in {summary['steps']} steps"
    if outcome_of(summary)["kind"] != "learnt":
        reached = f"{summary['steps']} steps, {sentence(summary['outcome'])}"
    lines = [
        f"base: `{without_folders(str(config.model.base))}`{' in NF4' if config.model.nf4 else ''}",
        f"method: {config.method.name} ({', '.join(fields)})",
        f"{reached}; {summary['finished']}" if outcome_of(summary)["kind"] == "learnt" else reached,
        f"reward: {without_folders(config.reward.function or _own_reward(config))}",
        data,
        made,
    ]
    if config.adapter.rank is not None:
        adapter = config.adapter
        lines.insert(1, f"adapter: LoRA, rank {adapter.rank}, α {adapter.alpha:g}, targets {adapter.targets}")
    return lines


def without_folders(text: str) -> str:
    """Shorten a path by this machine's folders; return other texts, such as names of the hub, unchanged.

    >>> without_folders("/somewhere/my.py:reward"), without_folders("/somewhere/first/model")
    ('my.py:reward', 'first/model')
    >>> without_folders("GSAI-ML/LLaDA-8B-Instruct")
    'GSAI-ML/LLaDA-8B-Instruct'
    """
    path = Path(text)
    if not path.is_absolute():
        return text
    return f"{path.parent.name}/{path.name}" if path.name == "model" else path.name  # a run's model


def _own_reward(config: RunConfig) -> str:
    task = config.task
    variant = f" ({task.reward})" if isinstance(task, LanguageConfig) else ""
    return f"the task's own{variant}"


def _data(config: RunConfig) -> str:
    task = config.task
    if isinstance(task, MazeConfig):
        return f"paths through a generated {task.size}×{task.size} maze, seed {task.seed}"
    if isinstance(task, MiniConfig):
        return f"{task.kind}, generated{'' if task.data_dir is None else '; published test items'}"
    if not isinstance(task, LanguageConfig):
        return task.kind
    if task.kind == "custom":
        return f"own rows, {describe_source(str(task.data))}"
    return f"{task.kind}, {task.protocol} prompts, completions of {task.completion_length} tokens"


def _held_out(summary: Mapping[str, Any]) -> str:
    if "tuned" not in summary:
        rows = [f"| {name} | {value:.3f} |" for name, value in summary.items() if isinstance(value, float)]
        return "\n".join(["| held-out measure | |", "|---|---|", *rows])
    rows = [
        f"| {name} | {value:.3f} | {summary['tuned'][name]:.3f} |" for name, value in summary["base"].items()
    ]
    return "\n".join(["| held-out measure | base | tuned |", "|---|---|---|", *rows])


def _published(results: Sequence[Mapping[str, Any]]) -> str:
    if not results:
        return ""
    head = ["| task | protocol | tokens | items | measures |", "|---|---|---|---|---|"]
    return "\n".join([*head, *map(_result, results)])


def _result(result: Mapping[str, Any]) -> str:
    named = (
        f"{name} {value:.1f}" if name == "length" else f"{name} {value:.1%}"
        for name, value in result["measures"].items()
    )
    length = f"{result['length']}, until the end" if result.get("until_end") else result["length"]
    facts = (result["task"], result["protocol"], length, result["items"], ", ".join(named))
    return f"| {' | '.join(map(str, facts))} |"


def _fingerprint(groups: Mapping[str, Mapping[str, Any]]) -> str:
    """Format a hash of each group of the fingerprint, and the packages."""
    if not groups:
        return ""
    rows = [f"| {words} | `{digest([groups[name]])}` |" for name, words in GROUPS.items() if name in groups]
    packages = ", ".join(f"{name} {value}" for name, value in groups.get("packages", {}).items())
    return "\n".join(
        [
            f"Fingerprint: runs with equal lines can be compared; `{FINGERPRINT}` has the values behind it.",
            "",
            "| decides the result | hash |",
            "|---|---|",
            *rows,
            "",
            f"Packages: {packages}.",
        ]
    )
