"""Calling a reward function that someone else wrote, and surviving whatever it does.

A reward may raise, hang, or return nonsense. Each case names the function and shows the sample; the
policy decides whether the sample is skipped or the run stops, with all that is on disk intact.
"""

from __future__ import annotations

import functools
import inspect
import math
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from dtm.errors import ConfigError, DtmWarning, RewardError
from dtm.loading import last_line
from dtm.tasks.base import Reward

MAX_HANGS = 3
"""Hung samples tolerated in one call under the policy "skip": each leaves a thread behind."""


@dataclass(frozen=True, slots=True)
class Scorer:
    """A reward function with its name, its failure policy and its deadline."""

    function: Reward
    name: str
    on_error: Literal["stop", "skip"] = "stop"
    timeout: float = 60.0
    declared: tuple[float, float] | None = None
    """The lowest and the highest reward that should occur; a reward beyond gets one warning."""
    _warned: list[float] = field(default_factory=list, init=False, repr=False, compare=False)

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Sequence[Any]]
    ) -> list[float | None]:
        """A finite reward for each sample, or None where the sample is to be skipped."""
        try:
            return self._score(prompts, completions, columns)
        except (_Failed, _Hung) as problem:
            notice = f"{problem}; looking for the sample among {len(completions)}"
            warnings.warn(notice, DtmWarning, stacklevel=2)
            return self._one_by_one(prompts, completions, columns)

    def _score(
        self, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Sequence[Any]]
    ) -> list[float | None]:
        """One call of the function, with its answer checked."""
        values = self._call(prompts, completions, columns)
        if isinstance(values, str) or getattr(values, "ndim", 1) != 1 or not hasattr(values, "__len__"):
            raise RewardError(
                f"reward {self.name} must return a list of numbers, got {type(values).__name__}"
            )
        if len(values) != len(completions):
            raise RewardError(
                f"reward {self.name} returned {len(values)} values for {len(completions)} completions; "
                "it must return one number (or None) for each"
            )
        return [self._checked(v, p, c) for v, p, c in zip(values, prompts, completions, strict=True)]

    def _one_by_one(
        self, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Sequence[Any]]
    ) -> list[float | None]:
        """The whole batch failed: find the samples that do it."""
        results: list[float | None] = []
        hangs = 0
        for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
            try:
                results += self._score([prompt], [completion], {k: [v[row]] for k, v in columns.items()})
            except (_Failed, _Hung) as problem:
                hangs += isinstance(problem, _Hung)
                if self.on_error == "stop" or hangs > MAX_HANGS:
                    raise RewardError(f"{problem}{self._shown(prompt, completion)}") from problem.__cause__
                results.append(None)
        return results

    def _call(
        self, prompts: Sequence[Any], completions: Sequence[Any], columns: Mapping[str, Sequence[Any]]
    ) -> Any:
        """Run the function in a thread of its own, so that a hung call can be abandoned."""
        outcome: list[Any] = []
        failure: list[BaseException] = []

        def work() -> None:
            try:
                outcome.append(self.function(prompts=prompts, completions=completions, **columns))
            except BaseException as problem:  # whatever the user's code raises is reported, SystemExit too
                failure.append(problem)

        thread = threading.Thread(target=work, name=f"reward {self.name}", daemon=True)
        thread.start()
        thread.join(self.timeout)
        if thread.is_alive():
            raise _Hung(f"reward {self.name} did not answer within {self.timeout:g} s (reward.timeout)")
        if failure:
            kind, place = type(failure[0]).__name__, _place(failure[0], self.function)
            raise _Failed(f"reward {self.name} raised {kind}: {failure[0]}{place}") from failure[0]
        return outcome[0]

    def _checked(self, value: Any, prompt: Any, completion: Any) -> float | None:
        if value is None:
            return None
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = math.nan
        if math.isfinite(number):
            self._warn_beyond(number)
            return number
        if self.on_error == "skip":
            return None
        raise RewardError(
            f"reward {self.name} returned {value!r}, not a finite number{self._shown(prompt, completion)}"
        )

    def _warn_beyond(self, number: float) -> None:
        """Warn once that a reward lies outside the declared range, which the ratio guard relies on."""
        if self.declared is None or self._warned or self.declared[0] <= number <= self.declared[1]:
            return
        self._warned.append(number)
        low, high = self.declared
        notice = (
            f"reward {self.name} returned {number:g}, outside of [{low:g}, {high:g}] (reward.low, "
            "reward.high): the ratio guard takes this range for granted. Start with a wider one, or without"
        )
        warnings.warn(notice, DtmWarning, stacklevel=2)

    def _shown(self, prompt: Any, completion: Any) -> str:
        return (
            f"\n  prompt:     {_short(prompt)}\n  completion: {_short(completion)}\n"
            "Fix the function, or leave such samples out: --reward.on-error skip."
        )


class _Failed(Exception):
    """The user's function raised."""


class _Hung(Exception):
    """The user's function did not return in time."""


def _place(problem: BaseException, function: Callable[..., Any]) -> str:
    """The line that raised, in the function's own file if it was there; nothing where the call failed."""
    while isinstance(function, functools.partial):
        function = function.func
    code = getattr(function, "__code__", None) or getattr(type(function).__call__, "__code__", None)
    frames = traceback.extract_tb(problem.__traceback__)[1:]  # the first one is ours
    own = [frame for frame in frames if code is not None and frame.filename == code.co_filename]
    return last_line(own or frames)


def require_call(function: Callable[..., Any], name: str, columns: Iterable[str]) -> None:
    """Refuse a reward that cannot be called with prompts, completions and the columns of the data."""
    given = ["prompts", "completions", *columns]
    try:
        # The decorated function counts, not the wrapped one: a decorator may change the signature.
        inspect.signature(function, follow_wrapped=False).bind(**dict.fromkeys(given))
    except TypeError as problem:
        raise ConfigError(
            f"reward {name} cannot be called: {problem}. It is given {', '.join(given)} by name; "
            "**columns takes those that it does not name, and further ones are columns of the data."
        ) from None
    except ValueError:  # a function without a signature
        return


def _short(value: Any, limit: int = 300) -> str:
    text = repr(value)
    return text if len(text) <= limit else f"{text[:limit]}… ({len(text)} characters)"
