"""`dtm models`: list the model families that can be loaded, and those that cannot, with the reason."""

from __future__ import annotations

import json
import textwrap
from typing import TYPE_CHECKING

from dtm.cli.parse import make_parser

if TYPE_CHECKING:
    from dtm.models.families.base import Family

WIDTH, INDENT = 110, 17
ATTENTION = {
    "full": "full attention",
    "block": "block-causal attention, blocks counted from the first token: prefix cache exact",
    "either": "full attention, or block-causal where a completion starts a new block: prefix cache exact",
    "causal": "causal; convert it with dtm adapt before tuning",
}


def models(arguments: list[str]) -> int:
    """List the supported model families, and the features of each."""
    parser = make_parser(
        "models",
        "List the families of models that can be loaded. Train, eval, sample, chat, fit and export take\n"
        "each. Python code in a model's folder is never run.",
    )
    parser.add_argument("--json", action="store_true", help="print the list as JSON")
    options = parser.parse_args(arguments)

    from dtm.models.families import FAMILIES, REFUSED

    if options.json:
        known = {name: _facts(family) for name, family in FAMILIES.items()}
        print(json.dumps({"families": known, "not supported": REFUSED}, indent=2))
        return 0
    for name, family in FAMILIES.items():
        print(f"{name:<{INDENT}}{family.models}")
        for key, text in _facts(family).items():
            if key != "models" and text:
                _print_indented(f"{key}: {text}")
    print("\nnot supported")
    for name, reason in REFUSED.items():
        _print_indented(f"{name}: {reason}")
    return 0


def _facts(family: Family) -> dict[str, str]:
    """Return the facts that `dtm models` lists about a family."""
    types = " or ".join(filter(None, (family.model_type, *family.aliases)))
    by = f" with architectures {' or '.join(family.architectures)}" if family.architectures else ""
    left_out = ""
    if family.leaves_out and family.attention != "causal":
        usual = {"--model.mask-token": family.usual_mask, "--model.block": family.usual_block}
        known = [f"{flag} {value}" for flag, value in usual.items() if value is not None]
        left_out = "mask token, from the tokenizer, dtm.json or --model.mask-token"
        if family.attention != "full":
            left_out += "; attention, from dtm.json or --model.attention block --model.block B"
        left_out += f" (published models: {', '.join(known)})" if known else ""
    written = "adapter (PEFT) and merged weights in the hub's names"
    if family.write is not None:
        written += "; all weights too (save_hub)"
    return {
        "models": family.models,
        "config.json": f"model_type {types}{by}" if types else "the package's own layout",
        "attention": ATTENTION[family.attention],
        "may be left out": left_out,
        "export": "" if family.attention == "causal" else written,
        "limits": family.limits,
    }


def _print_indented(text: str) -> None:
    inner = " " * INDENT
    print(
        textwrap.fill(
            text, WIDTH, initial_indent=inner, subsequent_indent=inner + "  ", break_on_hyphens=False
        )
    )
