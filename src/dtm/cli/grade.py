"""`dtm grade`: judge generated answers."""

from __future__ import annotations

import sys

from dtm.cli.parse import make_parser
from dtm.errors import ConfigError, DtmError


def grade(arguments: list[str]) -> int:
    """Judge generated answers under published or repaired rules."""
    parser = make_parser(
        "grade",
        "Extract the answers from generated texts and judge them. Each row is printed as a line "
        "of JSON with `extracted` and `correct`; the totals are printed on the standard error.",
        "rows: JSON objects with question, ground_truth and generation, one per line\n"
        "exit code: 0 if every row was graded, 1 if some could not be",
    )
    parser.add_argument("task", metavar="TASK", help="countdown, sudoku, gsm8k or math500")
    parser.add_argument("file", metavar="FILE", help="JSON lines, .gz or not; - reads the standard input")
    parser.add_argument(
        "--rules",
        default="fixed",
        help="rules that extract and judge an answer: d1, spg or dtm as published, with their defects; "
        "fixed (default) without them",
    )
    options = parser.parse_args(arguments)

    import json

    from dtm.evaluation.grade import Totals, grade_rows, open_lines

    totals = Totals()
    for graded in grade_rows(options.task, options.rules, open_lines(options.file), totals):
        if isinstance(graded, DtmError):
            print(f"dtm: {options.file}, {graded}", file=sys.stderr)
        else:
            print(json.dumps(graded))
    if not totals.rows + totals.without_gold + totals.errors:
        raise ConfigError(
            f"{options.file} holds no rows of {options.task}. {' '.join(totals.describe()[1:])}"
        )
    for line in totals.describe():
        print(f"{options.task}, rules {options.rules}: {line}", file=sys.stderr)
    return 1 if totals.errors else 0
