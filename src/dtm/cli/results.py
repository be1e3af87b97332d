"""`dtm results`: check that published numbers are the output of their recorded commands."""

from __future__ import annotations

from pathlib import Path

from dtm.cli.parse import make_parser


def results(arguments: list[str]) -> int:
    """Check result files against the manifest of their commands, or mark old tables."""
    parser = make_parser(
        "results",
        "Check a folder of results against its manifest: every file is unchanged since its command, and "
        "every table comes from one command at one commit, or is marked as old.",
    )
    parser.add_argument(
        "action",
        choices=["check", "mark"],
        help="check the files and the tables, or write into the Markdown of old tables why they are old",
    )
    parser.add_argument(
        "folder", nargs="?", type=Path, default=Path("results"), help="folder with manifest.json (results)"
    )
    options = parser.parse_args(arguments)

    from dtm.report.manifest import check, mark_old, notes, read

    if options.action == "mark":
        print("\n".join(mark_old(options.folder)) or "every old table is marked")
        return 0
    problems, tables = check(options.folder), read(options.folder)
    for problem in problems:
        print(problem)
    old = [name for name, entry in tables.items() if entry.get("old")]
    for name in old:
        print(f"old: {name}: {tables[name]['old']}")
    for note in notes(options.folder):
        print(f"note: {note}")
    files = sum(len(entry.get("files", {})) for entry in tables.values())
    print(f"{len(tables)} tables, {files} files, {len(old)} old tables, {len(problems)} problems")
    return 1 if problems else 0
