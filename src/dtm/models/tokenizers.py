"""Tokenizers of model folders, and their special tokens.

Nothing is downloaded, and no code of a folder is run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dtm.errors import CheckpointError, ConfigError, install_extra, require
from dtm.files import MAX_JSON

PARTS = ("vocab.json", "merges.txt")
"""Files of Dream on the hub in place of a tokenizer.json: those of Qwen2's tokenizer."""
MASKS = ("<|mask|>", "<|MASK|>", "|<MASK>|")
"""Mask tokens of published models."""
UNUSED = ("<empty_output>", "<reponame>", "<|reserved_special_token_0|>", "<|fim_pad|>")
"""Special tokens of source models that chat text does not use; one of them can become the mask token."""
ENDS = ("<|im_end|>", "<|eot_id|>", "<|role_end|>")
"""Ends of a turn in chat templates."""


def load_tokenizer(folder: Path) -> Any:
    """The tokenizer of a model's folder."""
    try:
        # AutoTokenizer would look for model code.
        from transformers import PreTrainedTokenizerFast, Qwen2Tokenizer
    except ImportError:
        raise no_transformers() from None
    whole = (folder / "tokenizer.json").is_file()
    lost = [name for name in PARTS if not (folder / name).is_file()]
    require(
        whole or not lost,
        f"no tokenizer in {folder}: tokenizer.json is missing, and so is {' and '.join(lost)}, which Dream "
        "has instead. On the hub it lies beside the weights.",
    )
    kind = PreTrainedTokenizerFast if whole else Qwen2Tokenizer
    for path in (folder / name for name in ("tokenizer.json", "tokenizer_config.json", *PARTS)):
        size = path.stat().st_size if path.is_file() else 0
        require(size <= MAX_JSON, f"{path} has {size:,} bytes; the limit is {MAX_JSON:,}", CheckpointError)
    try:
        # Cleaning up would remove spaces that the model wrote, and not every release of transformers does it.
        return kind.from_pretrained(folder, local_files_only=True, clean_up_tokenization_spaces=False)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as problem:  # a panic of the Rust library is no Exception
        raise CheckpointError(
            f"the tokenizer in {folder} cannot be loaded: {type(problem).__name__}: {str(problem)[:300]}"
        ) from None


def mask_token_id(tokenizer: Any, asked: str | int | None = None) -> int:
    """The mask token: the one asked for, the tokenizer's own, or a special token that chat text does not use.

    ``asked`` is an id or the token's text.
    """
    known = tokenizer.get_vocab()
    if asked is not None:
        number = int(asked) if isinstance(asked, int) or asked.isdecimal() else known.get(asked)
        require(
            number is not None and 0 <= number < len(tokenizer),
            f"mask token {asked}: the tokenizer of {len(tokenizer)} tokens has no such token",
        )
        assert number is not None
        return number
    for token in (tokenizer.mask_token, *MASKS, *UNUSED):
        if token in known:
            return int(known[token])
    raise ConfigError(
        "the tokenizer has no mask token, and no special token that can become one. Pass the id or the text "
        "of a token that your text does not use: --mask-token TOKEN"
    )


def end_of_turn_id(tokenizer: Any) -> int:
    """The token that ends an answer: that of the chat template, else the end of text."""
    known = tokenizer.get_vocab()
    for token in (*ENDS, tokenizer.eos_token):
        if token in known:
            return int(known[token])
    raise ConfigError("the tokenizer has neither <|im_end|> nor <|eot_id|> nor an end-of-text token")


def no_transformers() -> ConfigError:
    """The error of a machine without `transformers`."""
    return ConfigError(f"text needs a tokenizer: {install_extra('text')}")
