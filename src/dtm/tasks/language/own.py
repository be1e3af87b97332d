"""Read a user's own rows: a JSON-lines file, a CSV file, a data set of the hub, or rows in memory.

`open_rows` chooses the reader by the form of the value:

    rows.jsonl                                  one JSON object per line (any name that is none of the others)
    rows.csv                                    a header with the columns; all values are text
    hub:USER/NAME[/CONFIGURATION][:SPLIT]       through the package `datasets`; the split is train by default
    [{"prompt": …}, …]                          mappings in memory

Every reader gives mappings, each with its place for errors; `read_own` checks them and makes them `Row`.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from dtm.errors import DataError, require
from dtm.files import bounded_lines, text_line
from dtm.tasks.data import hub_dataset
from dtm.tasks.language.rows import Placed, Row, checked_rows, json_lines, numbered

HUB = "hub:"
"""Prefix of a data set of the hub."""
RowSource = str | Path | Iterable[Mapping[str, Any]]
"""Where rows come from: a file, a data set of the hub, or rows in memory."""
_DATA_SET = re.compile(r"([\w.-]+(?:/[\w.-]+)?)(?:/([\w. -]+))?(?::([\w.\[\]:%+-]+))?")


def read_own(source: RowSource) -> list[Row]:
    """Read the rows of a source: each must have a "prompt", and all the same other columns."""
    rows = checked_rows(open_rows(source))
    name = source if isinstance(source, str | Path) else "data"
    prompts = len({row.key for row in rows})
    require(
        prompts >= 3,
        f"{name} has {len(rows)} rows (distinct prompts: {prompts}). Rows of one prompt stay in one split, "
        "and training, validation and test need a prompt each",
        DataError,
    )
    return rows


def open_rows(source: RowSource, field: str = "task.data") -> Iterator[Placed]:
    """Yield the rows of a source unchecked, each with its place; ``field`` is the setting that names it."""
    if not isinstance(source, str | Path):
        return numbered(source, "data")
    if str(source).startswith(HUB):
        return _hub_rows(str(source), field)
    path = Path(source)
    require(
        path.is_file(),
        f"{field}: no file {path}. Name a JSON-lines or CSV file, or a data set of the hub as hub:USER/NAME",
        DataError,
    )
    return _csv_rows(path) if path.suffix.lower() == ".csv" else json_lines(path)


@dataclass(frozen=True, slots=True)
class HubName:
    """A data set of the hub, with one of its configurations and splits."""

    name: str
    configuration: str | None
    split: str

    @classmethod
    def parse(cls, text: str, field: str = "task.data") -> HubName:
        """Read ``hub:USER/NAME[/CONFIGURATION][:SPLIT]``.

        >>> HubName.parse("hub:openai/gsm8k/main:test")
        HubName(name='openai/gsm8k', configuration='main', split='test')
        >>> HubName.parse("hub:me/rows:train[:100]").split
        'train[:100]'
        """
        found = _DATA_SET.fullmatch(text.removeprefix(HUB))
        if found is None:
            raise DataError(
                f"{field}: {text} is not a data set of the hub. Write hub:USER/NAME, hub:USER/NAME:SPLIT or "
                "hub:USER/NAME/CONFIGURATION:SPLIT"
            )
        return cls(found[1], found[2], found[3] or "train")

    def __str__(self) -> str:
        """Return the data set's name, configuration and split as text."""
        configuration = "" if self.configuration is None else f" ({self.configuration})"
        return f"{self.name}{configuration}, split {self.split}"


def describe_source(source: str) -> str:
    """Return the name of a source without this machine's folders.

    >>> describe_source("somewhere/rows.csv"), describe_source("hub:me/rows")
    ('rows.csv', 'me/rows, split train, of the hub')
    """
    return f"{HubName.parse(source)}, of the hub" if source.startswith(HUB) else Path(source).name


def _hub_rows(text: str, field: str) -> Iterator[Placed]:
    asked = HubName.parse(text, field)
    rows = hub_dataset(
        asked.name,
        asked.configuration,
        asked.split,
        needed_by=f"{field} {text}",
        otherwise=f"store the rows as JSON lines or CSV, and name the file in {field}",
    )
    return numbered(map(dict, rows), str(asked))


def _csv_rows(path: Path) -> Iterator[Placed]:
    """Yield rows of a CSV file as mappings from its header; errors name line and column."""
    with path.open("rb") as stream:
        reader = csv.reader(_text_lines(stream, path), strict=True)
        header: list[str] | None = None
        for line, fields in _csv_lines(reader, path):
            where = f"{path}, line {line}"
            if header is None:
                header = _header(fields, where)
                continue
            require(
                len(fields) == len(header),
                f"{where}: has {len(fields)} fields, and the header has {len(header)} columns "
                f"({', '.join(header)}). Put a field that holds a comma or a line break in double quotes",
                DataError,
            )
            row = dict(zip(header, fields, strict=True))
            require(row["prompt"].strip() != "", f'{where}, column "prompt": empty', DataError)
            yield where, row


def _header(fields: Sequence[str], where: str) -> list[str]:
    """Return the names of the columns, without the spaces around them."""
    names = [field.strip() for field in fields]
    listed = ", ".join(names)
    for place, name in enumerate(names, start=1):
        require(name != "", f"{where}: column {place} of the header has no name ({listed})", DataError)
        require(names.count(name) == 1, f'{where}: the header has the column "{name}" twice', DataError)
    require(
        "prompt" in names,
        f'{where}: the header has no column "prompt"; it has {listed}. The first line names the columns, '
        "with commas between them",
        DataError,
    )
    return names


def _csv_lines(reader: Any, path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the fields of each row with its first line's number; skip empty lines."""
    while True:
        first = reader.line_num + 1
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as problem:
            raise DataError(
                f"{path}, line {first}: not CSV ({problem}). Double a quotation mark inside a quoted field; "
                "store longer fields as JSON lines"
            ) from None
        if fields:
            yield first, fields


def _text_lines(stream: BinaryIO, path: Path) -> Iterator[str]:
    """Yield the lines of a file as text, without a byte order mark."""
    for number, line in enumerate(bounded_lines(stream), start=1):
        text = text_line(line, f"{path}, line {number}: ", DataError)
        yield text.removeprefix("\ufeff") if number == 1 else text
