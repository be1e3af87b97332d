"""`dtm export`: write a run's model for others."""

from __future__ import annotations

from pathlib import Path

from dtm.cli.parse import make_parser
from dtm.errors import require


def export(arguments: list[str]) -> int:
    """Write a finished run's model as a folder for others, with a model card."""
    parser = make_parser(
        "export",
        "Write the model of a finished run to a new folder: a PEFT adapter with the hub's module names,\n"
        "or all weights as safetensors; with a README of how it was made and what it reaches.\n"
        "--push uploads the folder to the hub.",
    )
    parser.add_argument("run", metavar="RUN", type=Path, help="a run's folder")
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        help="the folder to write (default: RUN/export, or RUN/merged with --merged)",
    )
    parser.add_argument(
        "--merged",
        action="store_true",
        help="write full-precision weights with the adapter merged, also after training in NF4",
    )
    parser.add_argument(
        "--push", metavar="USER/NAME", help="upload the folder to the hub too; `hf auth login` logs in"
    )
    parser.add_argument("--private", action="store_true", help="with --push: a new repository is private")
    options = parser.parse_args(arguments)
    require(options.push is not None or not options.private, "--private needs --push USER/NAME")

    from dtm.report.export import export_run
    from dtm.runs.folder import RunFolder

    run = RunFolder.find(options.run)
    if options.push is not None:
        from dtm.report.push import local_base, push_folder, require_hub

        require_hub(options.push)
    out = options.out or run.path / ("merged" if options.merged else "export")
    export_run(run, out, options.merged)
    print(f"model: {out}", flush=True)
    if options.push is not None:
        if (base := local_base(out)) is not None:
            print(f"note:  the adapter's base is {base}. Users need that model too: push it, or use --merged")
        print(f"hub:   {push_folder(out, options.push, f'dtm export of {run.recipe}', options.private)}")
    return 0
