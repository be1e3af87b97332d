"""Fingerprints: all settings and inputs that determine a score, so that two scores can be compared.

Long values are stored as hashes, short ones as they are. The order of items does not change a score, so lists
are hashed sorted. `dtm.evaluation.explain` describes the differences of two fingerprints.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from dtm.engine import ORDERS, Decoder
from dtm.evaluation.subject import Subject
from dtm.models.export import CONFIG as ADAPTER
from dtm.models.export import WEIGHTS as ADAPTER_WEIGHTS
from dtm.models.families.settings import SIDECAR
from dtm.models.weights import weight_files
from dtm.runs.environment import environment, version
from dtm.tasks import answers, arithmetic
from dtm.tasks.language import Row
from dtm.tasks.protocols import Protocol
from dtm.tasks.sudoku import grids

PACKAGES = ("torch", "transformers", "tokenizers", "safetensors", "bitsandbytes")


def fingerprint(
    subject: Subject,
    task: str,
    protocol: Protocol,
    items: Sequence[Row],
    prompts: Sequence[Sequence[int]],
    decoder: Decoder,
    length: int,
    together: int,
) -> dict[str, dict[str, Any]]:
    """Return the fingerprint of an evaluation, by group; `explain` describes these groups and fields."""
    facts = [[item.columns["question"], item.columns["ground_truth"]] for item in items]
    texts = [[item.prompt, item.prefill] for item in items]
    machine = environment()
    return {
        "items": {"task": task, "count": len(items), "contents": digest(facts)},
        "prompts": {"protocol": protocol, "texts": digest(texts), "tokens": digest(list(prompts))},
        "answers": {"rules": protocol, "version": rules_version()},
        "decoding": {
            "length": length,
            "block": decoder.block,
            "tokens_per_step": decoder.tokens_per_step,
            "order": next(name for name, order in ORDERS.items() if isinstance(decoder.order, order)),
            "temperature": decoder.temperature,
            **({"until_end": True} if decoder.until_end else {}),  # absent in results that decode on
        },
        "model": model_identity(subject.source.weights, subject.source.adapter),
        "numerics": {
            "precision": subject.placement.precision,
            "nf4": subject.source.nf4,
            "attention": attention_kernels(subject.device),
            "rows_together": together,
        },
        "packages": {
            "dtm": machine["dtm"],
            "commit": machine["commit"],
            "python": machine["python"],
            **{name: version(name) for name in PACKAGES},
        },
        "hardware": {name: machine[name] for name in ("platform", "processor", "threads", "gpu")}
        | {"device": subject.device.type},
        "names": {"model": subject.source.name, "base": subject.source.base},
    }


def digest(values: Sequence[Any]) -> str:
    """Hash JSON values, independent of their order."""
    lines = sorted(json.dumps(value, sort_keys=True, ensure_ascii=False) for value in values)
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def rules_version() -> str:
    """Hash the code that extracts and judges answers."""
    files = Path(str(answers.__file__)).parent.glob("*.py")
    return code_version([*files, Path(arithmetic.__file__), Path(grids.__file__)])


def code_version(files: Iterable[Path]) -> str:
    """Hash source files, ignoring comments and layout."""
    return digest([[path.name, ast.dump(ast.parse(path.read_text(encoding="utf-8")))] for path in files])


def model_identity(weights: Path, adapter: Path | None = None) -> dict[str, str | None]:
    """Hash a model: configuration, layout and first rows of the weights, and the whole adapter.

    Hashing sixteen gigabytes for every score would be slow; the first row of each tensor distinguishes tuned
    weights from their base.
    """
    layout: list[Any] = []
    values: list[Any] = []
    files = weight_files(weights)
    for path in sorted(set(files.values())):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118, not a dictionary
                part = file.get_slice(name)
                layout.append([name, part.get_shape(), part.get_dtype()])
                first = part[:1].contiguous().view(torch.uint8).numpy().tobytes()
                values.append([name, hashlib.sha256(first).hexdigest()])
    beside = weights / SIDECAR  # mask token and attention, where config.json leaves them out
    config = (weights / "config.json").read_bytes() + (beside.read_bytes() if beside.is_file() else b"")
    return {
        "config": hashlib.sha256(config).hexdigest()[:16],
        "layout": digest(layout),
        "values": digest(values),
        "adapter": None if adapter is None else _adapter_digest(adapter),
    }


def _adapter_digest(folder: Path) -> str:
    """Hash the adapter's weights and its scale α / r."""
    config = json.loads((folder / ADAPTER).read_text(encoding="utf-8"))
    scale = f"{config['lora_alpha'] / config['r']:g}".encode()
    return hashlib.sha256((folder / ADAPTER_WEIGHTS).read_bytes() + scale).hexdigest()[:16]


def attention_kernels(device: torch.device) -> str:
    """Return the attention kernels from which torch chooses by shape."""
    if device.type != "cuda":
        return f"{device.type}: scaled_dot_product_attention"
    kernels = ("flash", "mem_efficient", "cudnn", "math")
    enabled = [name for name in kernels if getattr(torch.backends.cuda, f"{name}_sdp_enabled")()]
    return f"cuda: scaled_dot_product_attention, one of {', '.join(enabled)}"
