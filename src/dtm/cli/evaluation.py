"""`dtm eval`."""

from __future__ import annotations

from pathlib import Path

from dtm.cli.parse import make_parser


def evaluate(arguments: list[str]) -> int:
    """Measure a run's model on held-out prompts."""
    parser = make_parser("eval", "Decode held-out prompts with a run's model and measure the completions.")
    parser.add_argument("run", metavar="RUN", type=Path, help="a run's folder")
    parser.add_argument(
        "--split",
        choices=["validation", "test"],
        default="test",
        help="which held-out prompts (default: test, which no run has looked at)",
    )
    parser.add_argument("--prompts", type=int, metavar="N", help="prompts (default: as many as the run's)")
    parser.add_argument(
        "--completions", type=int, metavar="K", help="completions of each (default: the run's)"
    )
    parser.add_argument("--base", action="store_true", help="measure the base model beside the tuned one")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the measures to a file")
    options = parser.parse_args(arguments)

    from dataclasses import asdict, replace

    from rich.console import Console

    from dtm import api
    from dtm.training import build
    from dtm.training.display import measures_table
    from dtm.training.folder import write_json

    run = api.Run.open(options.run)
    config = run.config
    asked = {
        name: getattr(options, name)
        for name in ("split", "prompts", "completions")
        if getattr(options, name) is not None
    }
    setting = replace(config.evaluation, **asked)
    models = {"tuned": run.model}
    if options.base:
        models = {"base": build.load_base(config, build.build_task(config)), **models}
    results = {name: api.measure(config, model, setting) for name, model in models.items()}
    Console().print(measures_table(results))
    if options.json is not None:
        rows = {name: {**result.measures, "best": result.best} for name, result in results.items()}
        write_json(
            options.json,
            {"run": str(run.path), **asdict(setting), **rows},
        )
    return 0
