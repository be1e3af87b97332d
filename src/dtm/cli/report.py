"""`dtm report` and `dtm watch`: write the page of one or more runs, or serve it while they go on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dtm.cli.parse import make_parser

if TYPE_CHECKING:
    from dtm.report.page.data import PageRun


def report(arguments: list[str]) -> int:
    """Write the report page of a run, or of several runs side by side."""
    parser = make_parser(
        "report",
        "Write report.html from what a run has logged: one file with curves, samples and the denoising\n"
        "movie, which opens from disk and needs no network. Several runs are compared on one page.",
    )
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="a run's folder")
    parser.add_argument(
        "--out",
        metavar="FILE",
        type=Path,
        help="the page (default: RUN/report.html; of several runs, report.html in their common folder)",
    )
    options = parser.parse_args(arguments)

    from dtm.report.page.write import write_pages

    subjects = find_subjects(options.runs)
    print(f"page: {write_pages(subjects, options.out)}")
    return 0


def watch(arguments: list[str]) -> int:
    """Serve the page of a run on this machine while the run goes on."""
    parser = make_parser(
        "watch",
        "Serve the page of a run, or of several, to this machine alone. It follows runs that go on.\n"
        "Ctrl-C ends the server and no run.",
    )
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="a run's folder")
    parser.add_argument("--port", type=int, default=0, metavar="N", help="the port (default: a free one)")
    options = parser.parse_args(arguments)

    from dtm.report.page.write import title_of
    from dtm.report.watch import PageServer

    subjects = find_subjects(options.runs)
    with PageServer(subjects, title_of(subjects), options.port) as server:
        print(f"watching {title_of(subjects)} at {server.url} (Ctrl-C ends it)", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return 0
    return 0


def find_subjects(paths: Sequence[Path]) -> list[PageRun]:
    """Find the runs in the folders."""
    from dtm.report.page.write import subjects_of
    from dtm.runs.folder import RunFolder
    from dtm.runs.resume import check_finished

    folders = [RunFolder.find(path) for path in paths]
    for folder in folders:
        folder.read_config()  # refuses a folder that has no page, before anything is served
        if folder.is_finished:
            check_finished(folder)
    return subjects_of(folders)
