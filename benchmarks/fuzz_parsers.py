"""Every parser and reward on random and adversarial texts: python benchmarks/fuzz_parsers.py.

Prints the slowest call of each, and the text of a call that raises. The comparison by
computer algebra is left out: it has a process and a deadline of its own.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any

from dtm.evaluation.grade import GRADERS
from dtm.tasks.answers.verdict import RULES, Grader, Rules
from dtm.tasks.arithmetic import evaluate

PUZZLE, SOLUTION = "3014002020004130", "3214142323414132"
ROWS: dict[str, tuple[str, Any]] = {
    "countdown": ("", [[38, 92, 52], 78]),
    "sudoku": (PUZZLE, SOLUTION),
    "gsm8k": ("", 18.0),
    "math500": ("", r"\frac{1}{2}"),
}
COLUMNS: dict[str, dict[str, list[Any]]] = {
    "countdown": {"numbers": [[38, 92, 52]], "target": [78]},
    "sudoku": {"puzzle": [PUZZLE], "solution": [SOLUTION]},
    "gsm8k": {"answer": ["1,000"]},
    "math500": {"answer": [r"\frac{1}{2}"]},
}
REWARDS = {
    "countdown": ("reward", "released"),
    "sudoku": ("reward", "spg"),
    "gsm8k": ("reward", "spg", "d1"),
    "math500": ("reward", "spg", "spg_text"),
}
PIECES = [
    *("<reasoning>", "</reasoning>", "<answer>", "</answer>", "<|eot_id|>", "<|endoftext|>", "```", "####"),
    *(
        r"\boxed{",
        r"\boxed ",
        r"\boxed",
        r"\fbox{",
        r"\frac",
        r"\frac{",
        r"\sqrt",
        r"\text{ ",
        r"\left",
        r"\%",
    ),
    *(
        "{",
        "}",
        "(",
        ")",
        "[",
        "]",
        "=",
        "+",
        "-",
        "*",
        "**",
        "/",
        "//",
        ".",
        ",",
        "$",
        "\\",
        "\n",
        " ",
        "\t",
    ),
    *("18", "1,000", "-5", "0.5", "92-52+38", "1/0", "99**87**75", SOLUTION, "9" * 60, "nan", "1e999", "1_0"),
    *("٣", "²", "∞", "é", "\0", "\ud800", "\u2028", "x", "so the answer is"),
]


def texts(count: int, seed: int) -> Iterator[str]:
    """Mixtures of the pieces, one piece many times over, and noise; one in a hundred is long."""
    draw = random.Random(seed)
    for number in range(count):
        length = 2_000 if number % 100 == 0 else draw.randrange(40)
        kind = draw.randrange(4)
        if kind == 0:
            yield "".join(chr(draw.randrange(0x110000)) for _ in range(length))
        elif kind == 1:
            few = draw.sample(PIECES, 2)
            yield few[0] * length + few[1] * draw.randrange(length + 1)
        else:
            yield "".join(draw.choices(PIECES, k=length))


def grade(grader: Grader, question: str, ground_truth: Any, rules: Rules, text: str) -> object:
    """The verdict on a text."""
    return grader(question, ground_truth, text, rules)


def reward(function: Callable[..., object], columns: dict[str, list[Any]], text: str) -> object:
    """The reward of a text."""
    return function([""], [text], **columns)


def calls() -> dict[str, Callable[[str], object]]:
    """Everything that reads a model's text, by name."""
    found: dict[str, Callable[[str], object]] = {"arithmetic": evaluate}
    for task, grader in GRADERS.items():
        for rules in RULES:
            if (task, rules) != ("math500", "fixed"):
                found[f"{task} {rules}"] = partial(grade, grader, *ROWS[task], rules)
        module = import_module(f"dtm.tasks.{task}.reward")
        for name in REWARDS[task]:
            found[f"{task} {name}()"] = partial(reward, getattr(module, name), COLUMNS[task])
    return found


def run(count: int, seed: int) -> dict[str, Any]:
    """Read so many texts with every function; counts, and the slowest call of each function."""
    functions, raised = calls(), 0
    slowest = dict.fromkeys(functions, (0.0, 0))
    for text in texts(count, seed):
        for name, function in functions.items():
            start = time.perf_counter()
            try:
                function(text)
            except Exception as problem:
                raised += 1
                print(f"{name} raised {type(problem).__name__}: {problem}\non {ascii(text)[:2000]}")
            slowest[name] = max(slowest[name], (time.perf_counter() - start, len(text)))
    for name, (seconds, length) in sorted(slowest.items(), key=lambda entry: -entry[1][0]):
        print(f"{name:<24} slowest call {1000 * seconds:8.2f} ms, on {length} characters")
    return {
        "texts": count,
        "functions": len(functions),
        "calls": count * len(functions),
        "raised": raised,
        "slowest_ms": round(1000 * max(seconds for seconds, _ in slowest.values()), 1),
    }


def main() -> int:
    """Run it and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--texts", type=int, default=100_000, help="how many (default: 100,000)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    found = run(options.texts, options.seed)
    print(f"{found['calls']} calls, {found['raised']} raised")
    return 1 if found["raised"] else 0


if __name__ == "__main__":
    sys.exit(main())
