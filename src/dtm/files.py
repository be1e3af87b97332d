"""Read untrusted files: sizes are bounded, and every error names the file."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from dtm.errors import DtmError, require

MAX_CONFIG = 8 << 20
"""Largest configuration file, in bytes."""
MAX_JSON = 256 << 20
"""Largest JSON file, in bytes; tokenizers and indices of weights are the largest in use."""
MAX_LINE = 16 << 20
"""Longest row of a data file, in bytes."""


def read_text(path: Path, limit: int, error: type[DtmError]) -> str:
    """Return the text of a file; a file of more than ``limit`` bytes is an error."""
    try:
        size = path.stat().st_size
        require(size <= limit, f"{path} has {size:,} bytes; the limit is {limit:,}", error)
        return path.read_bytes().decode("utf-8")
    except OSError as problem:
        raise error(f"{path} cannot be read: {problem.strerror or problem}") from None
    except UnicodeDecodeError as problem:
        raise error(f"{path} is damaged: not UTF-8 text ({problem.reason})") from None


def read_json(path: Path, error: type[DtmError]) -> Any:
    """Return the parsed contents of a JSON file."""
    try:
        return json.loads(read_text(path, MAX_JSON, error))
    except (ValueError, RecursionError) as problem:
        if isinstance(problem, DtmError):
            raise
        raise error(f"{path} is damaged: not JSON ({problem})") from None


def bounded_lines(stream: io.BufferedIOBase | BinaryIO) -> Iterator[bytes]:
    """Yield the lines of a file; a line longer than `MAX_LINE` is cut after `MAX_LINE` + 1 bytes."""
    while line := stream.readline(MAX_LINE + 1):
        yield line
        while len(line) > MAX_LINE and not line.endswith(b"\n"):
            line = stream.readline(MAX_LINE + 1)


def text_line(line: bytes, where: str, error: type[DtmError]) -> str:
    """Decode one line as UTF-8; error messages begin with ``where``."""
    require(len(line) <= MAX_LINE, f"{where}longer than {MAX_LINE:,} bytes", error)
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError:
        raise error(f"{where}not UTF-8 text; store the file in that encoding") from None


def json_row(line: bytes, where: str, error: type[DtmError]) -> Any:
    """Parse one line of JSON; error messages begin with ``where``."""
    require(len(line) <= MAX_LINE, f"{where}longer than {MAX_LINE:,} bytes", error)
    try:
        return json.loads(line)
    except UnicodeDecodeError:
        raise error(f"{where}not UTF-8 text; store the file in that encoding") from None
    except (ValueError, RecursionError) as problem:
        raise error(f"{where}not JSON ({problem})") from None
