"""Explain why two scores differ, by comparing their fingerprints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dtm.evaluation.results import read_result, read_rows

DECIDES = {
    "items": "the test items",
    "prompts": "what is asked",
    "answers": "how answers are read",
    "decoding": "decoding",
    "model": "the model",
    "numerics": "arithmetic",
}
"""Groups of a fingerprint that determine a score."""
ROUNDS = {"packages": "packages", "hardware": "hardware"}
"""Groups that change the last bits of logits, and so a token if two are almost equally likely."""
WORDS = {
    ("items", "count"): "number of items",
    ("items", "contents"): "other questions or gold answers",
    ("prompts", "texts"): "other prompts or beginnings of the answer",
    ("prompts", "tokens"): "other token ids: prompts, tokenizer or chat template",
    ("answers", "rules"): "whose rules",
    ("answers", "version"): "another version of the parsers",
    ("decoding", "length"): "tokens of a completion",
    ("decoding", "block"): "tokens of a block",
    ("decoding", "tokens_per_step"): "tokens revealed by a step",
    ("decoding", "order"): "which token is revealed next",
    ("decoding", "until_end"): "rows stop at their end token",
    ("model", "config"): "another config.json",
    ("model", "layout"): "tensors of other names, shapes or types",
    ("model", "values"): "other weights",
    ("model", "adapter"): "another adapter, or none",
    ("numerics", "nf4"): "weights in four bits",
    ("numerics", "attention"): "attention kernels",
    ("numerics", "rows_together"): "rows decoded together",
    ("training", "order"): "other training prompts, or another order of them",
    ("reward", "source"): "another version of the function",
}
"""Descriptions of fields; others are shown by name."""
HASHES = frozenset(
    (
        ("items", "contents"),
        *(("prompts", "texts"), ("prompts", "tokens")),
        ("answers", "version"),
        *(("model", "config"), ("model", "layout"), ("model", "values"), ("model", "adapter")),
        *(("training", "order"), ("reward", "source")),
    )
)
"""Fields whose values are hashes, not shown to the reader."""


def explain(first: Path, second: Path) -> str:
    """Return the differences between two results, grouped, and between their items, as text."""
    a, b = read_result(first), read_result(second)
    lines = [f"A  {first}  {_measures(a)}", f"B  {second}  {_measures(b)}", ""]
    deciding = list(differences(DECIDES, a["fingerprint"], b["fingerprint"]))
    rounding = list(differences(ROUNDS, a["fingerprint"], b["fingerprint"]))
    if deciding:
        lines += ["settings that decide the number differ:", *deciding]
    else:
        lines.append("nothing that decides the number differs.")
    if rounding:
        lines += ["settings that change rounding differ:", *rounding]
    return "\n".join([*lines, *_items(read_rows(first, a), read_rows(second, b))])


def differences(groups: Mapping[str, str], a: Mapping[str, Any], b: Mapping[str, Any]) -> Iterator[str]:
    """Yield lines with the differences between two fingerprints, by group."""
    for group, title in groups.items():
        one, other = a.get(group, {}), b.get(group, {})
        names = [name for name in {**one, **other} if one.get(name) != other.get(name)]
        if names:
            yield f"  {title}"
        for name in names:
            description = WORDS.get((group, name), name.replace("_", " "))
            values = "" if (group, name) in HASHES else f": {one.get(name)} → {other.get(name)}"
            yield f"    {description}{values}"


def _measures(result: Mapping[str, Any]) -> str:
    return "  ".join(f"{name} {value:.4g}" for name, value in result["measures"].items())


def _items(a: list[dict[str, Any]] | None, b: list[dict[str, Any]] | None) -> Iterator[str]:
    """Count the items of both results that were generated or graded differently."""
    if a is None or b is None:
        return
    others = {_key(row): row for row in b}
    pairs = [(row, others[_key(row)]) for row in a if _key(row) in others]
    written = sum(one["generation"] != other["generation"] for one, other in pairs)
    first = sum(bool(one["correct"]) and not other["correct"] for one, other in pairs)
    second = sum(bool(other["correct"]) and not one["correct"] for one, other in pairs)
    yield (
        f"items of both: {len(pairs)}; other generations: {written}; right in A alone: {first}, "
        f"in B alone: {second}"
    )


def _key(row: Mapping[str, Any]) -> tuple[str, str]:
    return str(row["question"]), str(row["ground_truth"])
