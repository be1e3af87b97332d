"""Values of results inside sentences.

    A run takes <!--= sudoku-mini.json minutes.mean .0f -->2<!--/--> minutes.

The comment names a file in results/, the path of a value in it (keys and positions in lists, joined by dots)
and its format. Markdown shows only the value between the comments.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

VALUE = re.compile(r"(<!--= (\S+) (.+?) (\S+) -->)[^<\n]*(<!--/-->)")


def with_values(text: str, results: Path, page: str) -> str:
    """Return the text with its values as the results say; `page` is its name in errors."""
    for line in VALUE.sub("", text).splitlines():
        if "<!--=" in line or "<!--/-->" in line:
            raise LookupError(
                f"{page}: not a value: {line.strip()}. Write <!--= file path format --><!--/--> in one line."
            )
    if opening := re.search(r"^[ \t]*(?:[-*+>]|\d+\.)?[ \t]*<!--=.*", text, re.MULTILINE):
        raise LookupError(f"{page}: a line must not open with a value, or it is shown as HTML: {opening[0]}")
    return VALUE.sub(lambda match: match[1] + value(results, page, *match.group(2, 3, 4)) + match[5], text)


def value(results: Path, page: str, file: str, path: str, form: str) -> str:
    """Return the value at a path of a file, formatted."""
    if not (results / file).is_file():
        raise LookupError(f"{page}: results have no file {file}, from which it shows {path}")
    found = json.loads((results / file).read_text(encoding="utf-8"))
    for key in path.split("."):
        try:
            found = found[int(key) if isinstance(found, list) else key]
        except (LookupError, TypeError, ValueError):
            raise LookupError(f"{page}: {file} has no {path} (at {key})") from None
    try:
        return format(found, form).replace("-", "−")
    except (TypeError, ValueError) as error:
        raise LookupError(f"{page}: {path} of {file} cannot be shown as {form}: {error}") from None
