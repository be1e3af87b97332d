"""Read files that somebody else wrote: sizes are bounded, and every error names the file."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from dtm.errors import DtmError, require

MAX_CONFIG = 8 << 20
"""Bytes of a configuration."""
MAX_JSON = 256 << 20
"""Bytes of a JSON file; the largest are tokenizers and indices of weights."""
MAX_LINE = 16 << 20
"""Bytes of one row of a data file."""


def read_text(path: Path, limit: int, error: type[DtmError]) -> str:
    """The text of a file of at most ``limit`` bytes."""
    try:
        size = path.stat().st_size
        require(size <= limit, f"{path} has {size:,} bytes; at most {limit:,} are read", error)
        return path.read_bytes().decode("utf-8")
    except OSError as problem:
        raise error(f"{path} cannot be read: {problem.strerror or problem}") from None
    except UnicodeDecodeError as problem:
        raise error(f"{path} is damaged: not UTF-8 text ({problem.reason})") from None


def read_json(path: Path, error: type[DtmError], limit: int = MAX_JSON) -> Any:
    """The value of a JSON file."""
    try:
        return json.loads(read_text(path, limit, error))
    except (ValueError, RecursionError) as problem:
        if isinstance(problem, DtmError):
            raise
        raise error(f"{path} is damaged: not JSON ({problem})") from None


def bounded_lines(stream: io.BufferedIOBase | BinaryIO) -> Iterator[bytes]:
    """The lines of a file; of one longer than `MAX_LINE`, the first `MAX_LINE` + 1 bytes."""
    while line := stream.readline(MAX_LINE + 1):
        yield line
        while len(line) > MAX_LINE and not line.endswith(b"\n"):
            line = stream.readline(MAX_LINE + 1)


def text_line(line: bytes, where: str, error: type[DtmError]) -> str:
    """One line as text; ``where`` begins the message of an error."""
    require(len(line) <= MAX_LINE, f"{where}longer than {MAX_LINE:,} bytes", error)
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        raise error(f"{where}not UTF-8 text; store the file in that encoding") from None


def json_row(line: bytes, where: str, error: type[DtmError]) -> Any:
    """The value of one JSON line; ``where`` begins the message of an error."""
    require(len(line) <= MAX_LINE, f"{where}longer than {MAX_LINE:,} bytes", error)
    try:
        return json.loads(line)
    except UnicodeDecodeError:
        raise error(f"{where}not UTF-8 text; store the file in that encoding") from None
    except (ValueError, RecursionError) as problem:
        raise error(f"{where}not JSON ({problem})") from None
