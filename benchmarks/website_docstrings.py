"""Extension of mkdocstrings' reader: doctests outside of an Examples section become blocks of code."""

from __future__ import annotations

from typing import Any

import griffe


class Doctests(griffe.Extension):  # type: ignore[misc,unused-ignore]  # Any where griffe is not installed
    """Fence the doctests of every docstring; Markdown would read ``>>>`` as a quotation."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of an object that was read."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    """The text with a fence around each paragraph that holds a doctest.

    >>> print(fenced(chr(10).join(["Add one.", "", ">>> 1 + 1", "2"])))
    Add one.
    <BLANKLINE>
    ```pycon
    >>> 1 + 1
    2
    ```
    """
    paragraphs = text.split("\n\n")
    return "\n\n".join(_fenced(part) if part.lstrip().startswith(">>>") else part for part in paragraphs)


def _fenced(paragraph: str) -> str:
    indent = paragraph[: len(paragraph) - len(paragraph.lstrip())].rsplit("\n", 1)[-1]
    return f"{indent}```pycon\n{paragraph.rstrip()}\n{indent}```"
