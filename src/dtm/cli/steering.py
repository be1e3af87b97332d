"""`dtm sample --best-of N` and `--smc N`: completions steered by a reward, and their cost."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import TYPE_CHECKING

from dtm.cli.asking import LENGTH, MODEL, decoder_of, find_source
from dtm.cli.parse import refuse, refuse_model
from dtm.errors import nearest, require

if TYPE_CHECKING:
    from dtm.evaluation.subject import ModelFiles
    from dtm.steering import Steering
    from dtm.steering.task import Answers
    from dtm.tasks.base import Task
    from dtm.tasks.language import LanguageTask
    from dtm.tasks.rewards import Scorer

BATCH = 32
"""Rows of a language model that are decoded together."""
SWEEPS = 4
"""Sweeps of --gibbs if no number is given."""
OF_SMC = ("gibbs", "values", "draws", "correct")
OF_TASKS = ("task", "data_dir", "data", "reward")
OPTIONS = ("tilt", "show", *OF_SMC, *OF_TASKS)
"""Options that need --best-of or --smc; an option that is not given is None."""
OF_MODELS = ("length", "steps", "block", "device", "precision", *MODEL)
"""Options that a run sets itself."""
TASKS = ("countdown", "sudoku", "gsm8k", "math500", "custom")


def add_steering(add: Callable[..., object]) -> None:
    """Add the options of steering with ``add``, an ``add_argument``; an option that is not given is None."""
    add("--best-of", type=int, metavar="N", help="draw N completions and keep the one of highest reward")
    add("--smc", type=int, metavar="N", help="draw from the law tilted by e^(a r), with N particles")
    add(
        "--gibbs",
        type=int,
        nargs="?",
        const=SWEEPS,
        metavar="M",
        help=f"with --smc: M sweeps of conditional SMC after the first pass (M left out: {SWEEPS})",
    )
    add(
        "--tilt",
        type=float,
        metavar="A",
        help="tilt a of the law e^(a r): required by --smc; with --best-of, draw in proportion to e^(a r)",
    )
    add(
        "--values",
        choices=["one-shot", "greedy", "rollout"],
        help="with --smc: estimator of the value of an unfinished completion (default: one-shot)",
    )
    add(
        "--draws",
        type=int,
        metavar="K",
        help="with --smc: completions per value estimate, unless it is greedy (default: 4)",
    )
    add(
        "--correct",
        action="store_true",
        default=None,
        help="with --smc and a run: draw from the base's tilted law, with the tuned model as proposal",
    )
    add(
        "--show",
        choices=["draw", "best", "all"],
        help="completions to print: one drawn in proportion to the weights, the one of highest reward, or "
        "all (default: best for --best-of without --tilt, else draw)",
    )
    add("--task", metavar="TASK", help=f"for a model: the task with prompts and reward; {', '.join(TASKS)}")
    add("--data-dir", metavar="DIR", help="with --task: folder of the data sets, or hub, or generated")
    add("--data", metavar="FILE", help="with --task custom: prompts as JSON lines, .csv or hub:USER/NAME")
    add("--reward", metavar="FILE.py:F", help="with --task or --prompt: your own reward function")


def steer(options: argparse.Namespace) -> int:
    """Answer prompts under a reward; print the answers and their cost."""
    method = _method(options)
    if options.task is None and options.prompt is None:
        refuse(options, ("data_dir", "data", "reward"), "is for --task: a run has its own data and reward")
        refuse(options, OF_MODELS, "needs --task or --prompt: a run is decoded with its own settings")
        refuse_model(options.model, "name a reward with --task, or with --prompt TEXT --reward FILE.py:F")
        answers, task = _of_run(options, method)
    else:
        refuse(options, ("base", "correct"), "is for runs, without --task and --prompt")
        answers, task = _of_model(options, method)
    show = options.show or ("best" if answers.steered.law == "best" else "draw")
    _print_answers(answers, task, show)
    for line in describe(answers, show):
        print(line)
    return 0


def _method(options: argparse.Namespace) -> Steering:
    """Return the `BestOf` or `SMC` of the options."""
    require(
        options.best_of is None or options.smc is None,
        "give either --best-of or --smc, not both",
    )
    if options.smc is None:
        refuse(options, OF_SMC, "needs --smc N")
    else:
        require(
            options.tilt is not None,
            "--smc draws from the law tilted by e^(a r): give a with --tilt A, for example --tilt 2",
        )
        if options.values == "greedy":
            refuse(
                options, ("draws",), "is for --values one-shot and rollout: a greedy value has one completion"
            )

    from dtm.steering import SMC, BestOf

    if options.smc is None:
        return BestOf(n=options.best_of, tilt=options.tilt)
    return SMC(
        n=options.smc,
        tilt=options.tilt,
        values=options.values or "one-shot",
        draws=4 if options.draws is None else options.draws,
        sweeps=options.gibbs or 0,
    )


def _of_run(options: argparse.Namespace, method: Steering) -> tuple[Answers, Task]:
    from dtm import api

    run = api.Run.open(options.model)
    answers = run.steer(
        method,
        2 if options.prompts is None else options.prompts,
        1 if options.completions is None else options.completions,
        bool(options.base),
        bool(options.correct),
        options.temperature,
        options.seed,
    )
    return answers, run.assembly.task


def _of_model(options: argparse.Namespace, method: Steering) -> tuple[Answers, Task]:
    """A language model on a benchmark, on rows of the user, or on one prompt."""
    from dtm.config import EvaluationConfig
    from dtm.evaluation.subject import Subject
    from dtm.models.families import read_shape
    from dtm.random import derived_seed, stream
    from dtm.steering.task import steer_task

    count = 1 if options.prompt is not None else 2 if options.prompts is None else options.prompts
    repeats = 1 if options.completions is None else options.completions
    EvaluationConfig(prompts=count, completions=repeats)  # refuses numbers below one
    source = find_source(options)
    length = LENGTH if options.length is None else options.length
    temperature = 1.0 if options.temperature is None else options.temperature
    block = read_shape(source.weights, source.asked)[1].attention_block
    decoder = decoder_of(options, length, block, temperature)
    task, scorer = _task(options, source, length)
    asked = task.prompts("test", count, stream(options.seed, "sample prompts")).repeat(repeats)
    subject = Subject.load(source, options.device or "auto", options.precision or "auto")
    with subject.autocast():
        answers = steer_task(
            subject.model,
            task,
            scorer,
            asked.to(subject.device),
            method,
            decoder,
            seed=derived_seed(options.seed, "sample noise"),
            batch=BATCH,
        )
    return answers, task


def _task(options: argparse.Namespace, source: ModelFiles, length: int) -> tuple[LanguageTask, Scorer]:
    """Return the task of the options with its reward; check both before weights are loaded."""
    from types import SimpleNamespace

    from dtm.config import LanguageConfig, RewardConfig
    from dtm.loading import load_object
    from dtm.loop.assemble import build_scorer
    from dtm.random import stream
    from dtm.tasks.language.build import language_task, text_task
    from dtm.tasks.rewards import require_call

    if options.prompt is not None:
        refuse(options, ("task", "data_dir", "data", "prompts"), "is for --task: --prompt gives one question")
        require(
            options.reward is not None,
            "--prompt has no reward to steer by: give your own with --reward FILE.py:FUNCTION, or choose a "
            "benchmark with --task",
        )
        rows = {split: [{"prompt": options.prompt}] for split in ("train", "validation", "test")}
        function = load_object(options.reward, "reward")
        given = SimpleNamespace(name="prompt", splits=rows, reward=function, completion_length=length)
        task = text_task(given, source.tokenizer, source.asked)
        config = LanguageConfig(kind="custom")
    else:
        require(
            options.task in TASKS,
            f"--task {options.task}: no such task for a model. {nearest(options.task, TASKS)} For other "
            "tasks, steer a run: dtm sample RUN",
        )
        config = LanguageConfig(
            kind=options.task, data_dir=options.data_dir, data=options.data, completion_length=length
        )
        task = language_task(config, source.tokenizer, source.asked)
    scorer = build_scorer(RewardConfig(function=options.reward), task, config)
    require_call(scorer.function, scorer.name, task.prompts("test", 1, stream(0, "columns")).columns)
    return task, scorer


def _print_answers(answers: Answers, task: Task, show: str) -> None:
    steered = answers.steered
    count = steered.weight.shape[1]
    for prompt, view in enumerate(answers.prompts.views):
        rows = {
            "draw": [int(steered.drawn[prompt])],
            "best": [int(steered.best[prompt])],
            "all": range(prompt * count, (prompt + 1) * count),
        }[show]
        for row in rows:
            weight = float(steered.weight[prompt, row % count])
            print(task.show(view, answers.completions[row]))
            print(f"reward {float(steered.reward[row]):.3f}  weight {weight:.3f}\n")


def describe(answers: Answers, show: str) -> list[str]:
    """Describe the answers, the quality of the particles, and the cost."""
    from dtm.steering import SMC
    from dtm.steering.best_of import kl_bound

    steered, method = answers.steered, answers.steered.method
    prompts, n = steered.weight.shape
    what = {
        "draw": f"one of {n} completions, drawn in proportion to its weight",
        "best": f"the highest reward of {n} completions",
        "all": f"shown with all {n} completions and their weights",
    }[show]
    lines = [f"{method.name}: each answer is {what}"]
    if method.tilt is not None and show == "best":
        lines[0] += "; not a draw of the tilted law"
    elif isinstance(method, SMC):
        lines.append(f"weights: the law ρ e^(a r), a = {method.tilt:g}, ρ that of the decoder; bias O(1/N)")
    elif method.tilt is not None:
        lines.append(f"weights: e^(a r), a = {method.tilt:g}; a tilt by less than a, never above N")
    if show == "best" and not isinstance(method, SMC):
        lines.append(f"KL to the sampled law: at most log n − (n − 1)/n = {kl_bound(n):.2f} nats")
    if method.tilt is not None:
        share = float((1 / steered.weight.square().sum(1)).mean())
        tokens = steered.rows.tokens.view(prompts, n, -1)
        distinct = sum(len(each.unique(dim=0)) for each in tokens) / prompts
        carried = f"effective {share:.1f} of {n}, distinct {distinct:.1f}"
        lines.append(f"log Z {float(steered.log_z.mean()):.3f}, {carried}: means over prompts")
    effort = steered.effort
    each = f"{effort.forwards / prompts:,.0f} forward passes and {effort.rewards / prompts:,.0f} reward calls"
    lines.append(f"cost of an answer: {each}; of all {prompts}: {effort.forwards:,} and {effort.rewards:,}")
    return lines
