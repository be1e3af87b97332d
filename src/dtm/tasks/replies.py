"""Call a user's reward function, in a worker process or here, and convert its result to plain values.

The result is a `Reply`: a number, None or an error per sample, an exception with its line, or an error of the
whole result. `dtm.tasks.rewards` applies the failure policy.
"""

from __future__ import annotations

import functools
import math
import os
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from dtm.loading import last_line
from dtm.tasks.base import Reward
from dtm.workers import end_after

EXCERPT = 300
"""Characters of a value that an error message shows."""
LARGEST = 1e30
"""Largest reward; sums and squares of larger ones overflow single precision."""
Columns = Mapping[str, Sequence[Any]]
Call = tuple[Sequence[Any], Sequence[Any], Columns]
"""Prompts, completions and columns: the arguments of a reward."""


@dataclass(frozen=True, slots=True)
class Bad:
    """A value that is not a reward, with an error text to follow the function's name."""

    text: str


@dataclass(frozen=True, slots=True)
class Raised:
    """An exception of the function: its type, message and line, and its traceback."""

    text: str
    trace: str


Value = float | Bad | None
Reply = list[Value] | Raised | str
"""The values, an exception, or an error of the whole result."""


def serve(function: Reward, timeout: float, connection: Connection) -> None:
    """Answer calls until the pipe is closed."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)  # its threads do not survive a fork
    connection.send("ready")
    while True:
        try:
            call = connection.recv()
        except EOFError:
            return
        end_after(timeout + 1)
        reply = reply_of(function, call)
        end_after(0.0)
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        connection.send(reply)


def reply_of(function: Reward, call: Call) -> Reply:
    """Call the function and return its result, or its exception, as plain values."""
    process = os.getpid()
    prompts, completions, columns = call
    try:
        returned: Any = function(prompts=prompts, completions=completions, **columns)
        if os.getpid() != process:
            os._exit(0)  # the function has forked, and this is the copy
        wrong = _wrong(returned, len(completions))
        return [_number(value) for value in returned] if wrong is None else wrong
    except BaseException as problem:  # report any exception of the user's code, also SystemExit
        if os.getpid() != process:
            os._exit(0)
        hint = ". Set --reward.in-process to share this process's GPU" if _is_cuda_fork(problem) else ""
        text = f"{type(problem).__name__}: {problem}{_place(problem, function)}{hint}"
        return Raised(text, "".join(traceback.format_exception(problem)))


def _wrong(values: Any, count: int) -> str | None:
    """Return the error of a value that is not one number per completion, else None."""
    listed = hasattr(values, "__len__") and getattr(values, "ndim", 1) == 1
    if not listed or isinstance(values, (str, bytes, bytearray, Mapping, Set)):
        return f"must return a list of numbers, got {type(values).__name__}"
    if len(values) != count:
        return (
            f"returned {len(values)} values for {count} completions; it must return one number (or None) "
            "for each"
        )
    return None


def _number(value: Any) -> Value:
    """Convert a value to a float, None, or the reason why it is neither."""
    if value is None:
        return None
    if isinstance(value, (str, bytes, bytearray)):
        return Bad(f"returned {excerpt(value)}, which is text and not a number")
    try:
        number = float(value)
    except Exception as problem:  # a user's own conversion may raise any error
        return Bad(f"returned {excerpt(value)}, which is not a number ({type(problem).__name__}: {problem})")
    if not math.isfinite(number):
        return Bad(f"returned {excerpt(value)}, not a finite number")
    if abs(number) > LARGEST:
        return Bad(f"returned {number:g}, beyond ±{LARGEST:g}: scale it down")
    return number


def _is_cuda_fork(problem: BaseException) -> bool:
    return "re-initialize CUDA in forked" in str(problem)


def _place(problem: BaseException, function: Callable[..., Any]) -> str:
    """Return the line that raised, preferably in the function's own file; empty if the call itself failed."""
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    frames = traceback.extract_tb(problem.__traceback__)[1:]  # the first frame is ours
    own = [frame for frame in frames if code is not None and frame.filename == code.co_filename]
    return last_line(own or frames)


def excerpt(value: Any) -> str:
    """Return the representation of any value, cut to a length."""
    try:
        text = repr(value)
    except Exception:  # an integer of too many digits, or a method of the user's
        text = f"an object of {type(value).__name__}"
    return text if len(text) <= EXCERPT else f"{text[:EXCERPT]}… ({len(text)} characters)"
