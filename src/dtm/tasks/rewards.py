"""Call a user's reward function safely, with deadlines and a failure policy.

A reward may raise, hang, hold the interpreter, end its process, or return invalid values. It runs in a
separate process (`dtm.workers`), which gets copies of the samples and is killed at the deadline. Each failure
names the function and shows the sample. The policy is to skip the sample or to stop the run; a stopped run
keeps its files.
"""

from __future__ import annotations

import copy
import functools
import inspect
import math
import pickle
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Any, Literal

from dtm.errors import ConfigError, DtmWarning, RewardError, require
from dtm.tasks.base import Reward
from dtm.tasks.replies import Bad, Call, Columns, Raised, Reply, Value, excerpt, reply_of, serve
from dtm.workers import POLL, Check, Gone, Late, Worker, go_on

MAX_HANGS = 3
"""Largest number of samples that may hang in one call under the policy "skip"."""
MAX_NOTICES = 10
"""Largest number of distinct reasons for skipping that are reported; messages may contain the sample."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Rewards, None for a skipped sample, and the count of each reason for skipping."""

    rewards: list[float | None]
    reasons: Counter[str]


@dataclass(frozen=True, slots=True)
class Scorer:
    """A reward function with its name, failure policy, deadline and worker processes."""

    function: Reward
    name: str
    on_error: Literal["stop", "skip"] = "stop"
    timeout: float = 60.0
    declared: tuple[float, float] | None = None
    """Expected lowest and highest reward; a reward outside causes one warning."""
    workers: int = 1
    """Number of processes that split a batch."""
    in_process: bool = False
    """Call the function in this process, in a thread."""
    _warned: set[str] = field(default_factory=set, init=False, repr=False, compare=False)
    _pool: list[Worker] = field(default_factory=list, init=False, repr=False, compare=False)

    def start(self) -> None:
        """Fork the worker processes now, while this process is small and uses no GPU."""
        for worker in self._started():
            worker.start()

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], columns: Columns
    ) -> list[float | None]:
        """Return a finite reward per sample, or None to skip it; at least one is not None."""
        scores = self.score(prompts, completions, columns)
        self.require_some(scores)
        return scores.rewards

    def score(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        columns: Columns,
        between: Check = go_on,
    ) -> Scores:
        """Return the rewards of some samples of a call, which may all be None; no call without samples.

        ``between`` is called about every second while the function runs; if it raises, the call ends.
        """
        if not completions:
            return Scores([], Counter())
        try:
            values = self._batch(prompts, completions, columns, between)
        except (_Failed, _Hung) as problem:
            self._warn(f"{problem}; looking for the sample among {len(completions)}")
            values = self._one_by_one(prompts, completions, columns, between)
        rewards = [self._accepted(v, p, c) for v, p, c in zip(values, prompts, completions, strict=True)]
        skipped = [value for value in values if not isinstance(value, float)]
        self._warn_skipped(value.text for value in skipped if value is not None)
        return Scores(rewards, Counter("returned None" if value is None else value.text for value in skipped))

    def require_some(self, scores: Scores) -> None:
        """Raise an error for a call without any reward."""
        total, reasons = len(scores.rewards), scores.reasons
        if reasons and reasons.total() == total:
            listed = "; ".join(f"{text} ({count} of {total})" for text, count in reasons.most_common(3))
            raise RewardError(f"reward {self.name} gave no reward to any of {total} completions: it {listed}")

    def _batch(
        self, prompts: Sequence[Any], completions: Sequence[Any], columns: Columns, between: Check
    ) -> list[Value]:
        """Return the values of a batch, which the worker processes split in order."""
        size = -(-len(completions) // self.workers)
        if self.in_process or size == len(completions):
            return self._values(0, (prompts, completions, columns), between)
        parts = [slice(start, start + size) for start in range(0, len(completions), size)]
        calls = [
            (prompts[part], completions[part], {name: column[part] for name, column in columns.items()})
            for part in parts
        ]
        self.start()  # not in the threads: a process that is forked beside other threads may hang
        with ThreadPoolExecutor(len(calls)) as threads:
            values = threads.map(self._values, range(len(calls)), calls, repeat(between))
            return list(chain.from_iterable(values))

    def _one_by_one(
        self, prompts: Sequence[Any], completions: Sequence[Any], columns: Columns, between: Check
    ) -> list[Value]:
        """Call the samples of a failed batch one by one, to find those that fail."""
        results: list[Value] = []
        hangs = 0
        for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
            try:
                alone = {name: [column[row]] for name, column in columns.items()}
                results += self._values(0, ([prompt], [completion], alone), between)
            except (_Failed, _Hung) as problem:
                hangs += isinstance(problem, _Hung)
                if self.on_error == "stop" or hangs > MAX_HANGS:
                    raise RewardError(f"{problem}{self._shown(prompt, completion)}") from problem.__cause__
                results.append(Bad(str(problem).removeprefix(f"reward {self.name} ")))
        return results

    def _values(self, worker: int, call: Call, between: Check) -> list[Value]:
        """Call the function, in a worker or here, and return its values; raise its failure."""
        reply = self._in_thread(call, between) if self.in_process else self._in_worker(worker, call, between)
        if isinstance(reply, Raised):
            raise _Failed(f"reward {self.name} raised {reply.text}") from _Traceback(reply.trace)
        if isinstance(reply, str):
            raise RewardError(f"reward {self.name} {reply}")
        return reply

    def _in_worker(self, number: int, call: Call, between: Check) -> Reply:
        try:
            reply: Reply = self._started()[number].ask(call, self.timeout, between)
        except Late:
            raise self._hung() from None
        except Gone:
            raise _Failed(
                f"reward {self.name} ended its process. If it cannot run in a separate process, "
                "set --reward.in-process"
            ) from None
        except (pickle.PicklingError, TypeError, AttributeError) as problem:
            raise RewardError(
                f"the samples cannot be sent to the process of reward {self.name}: {problem}. "
                "Set --reward.in-process to call it in this one"
            ) from None
        return reply

    def _in_thread(self, call: Call, between: Check) -> Reply:
        """Call the function in a thread, so that a hung call can be abandoned unless it holds the GIL."""
        replies: list[Reply] = []
        copies = copy.deepcopy(call)
        thread = threading.Thread(
            target=lambda: replies.append(reply_of(self.function, copies)),
            name=f"reward {self.name}",
            daemon=True,
        )
        thread.start()
        end = time.monotonic() + self.timeout
        thread.join(min(POLL, self.timeout))
        while thread.is_alive():
            if time.monotonic() >= end:
                raise self._hung()
            between()
            thread.join(min(POLL, max(end - time.monotonic(), 0.0)))
        return replies[0]

    def _hung(self) -> _Hung:
        return _Hung(f"reward {self.name} did not answer within {self.timeout:g} s (reward.timeout)")

    def _started(self) -> list[Worker]:
        if not self._pool and not self.in_process:
            answers = functools.partial(serve, self.function, self.timeout)
            self._pool.extend(Worker(answers) for _ in range(self.workers))
        return self._pool

    def _accepted(self, value: Value, prompt: Any, completion: Any) -> float | None:
        """Convert a value to a reward: None to skip the sample, an error if the policy is to stop."""
        if not isinstance(value, Bad):
            if value is not None:
                self._warn_beyond(value)
            return value
        if self.on_error == "skip":
            return None
        raise RewardError(f"reward {self.name} {value.text}{self._shown(prompt, completion)}")

    def _warn_skipped(self, texts: Iterable[str]) -> None:
        """Warn once about each reason for skipping that is an error."""
        for text in set(texts) - self._warned:
            if len(self._warned) < MAX_NOTICES:
                self._warned.add(text)
                self._warn(f"reward {self.name} {text}: the sample is skipped (reward.on_error)")

    def _warn_beyond(self, number: float) -> None:
        """Warn once that a reward lies outside the declared range, which the ratio guard relies on."""
        low, high = self.declared or (-math.inf, math.inf)
        if low <= number <= high or "beyond" in self._warned:
            return
        self._warned.add("beyond")
        self._warn(
            f"reward {self.name} returned {number:g}, outside of [{low:g}, {high:g}] (reward.low, "
            "reward.high): the ratio guard takes this range for granted. Start with a wider one, or without"
        )

    def _warn(self, notice: str) -> None:
        warnings.warn(notice, DtmWarning, stacklevel=3)

    def _shown(self, prompt: Any, completion: Any) -> str:
        return (
            f"\n  prompt:     {excerpt(prompt)}\n  completion: {excerpt(completion)}\n"
            "Fix the function, or leave such samples out: --reward.on-error skip."
        )


class _Failed(Exception):
    """The user's function raised, or its process ended."""


class _Hung(Exception):
    """The user's function did not return in time."""


class _Traceback(Exception):
    """The traceback of an exception in another process, as text."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


NOT_PLAIN: Mapping[Callable[[Any], bool], str] = {
    inspect.iscoroutinefunction: "is an async function",
    inspect.isasyncgenfunction: "is an async generator",
    inspect.isgeneratorfunction: "is a generator (it has a yield)",
}
"""Functions whose call returns before they have computed anything."""


def require_call(function: Callable[..., Any], name: str, columns: Iterable[str]) -> None:
    """Raise an error if a reward cannot be called with prompts, completions and the data's columns."""
    given = ["prompts", "completions", *columns]
    of_object = getattr(type(function), "__call__", None)  # noqa: B004  its kind matters
    for is_such, words in NOT_PLAIN.items():
        plain = not (is_such(function) or is_such(of_object))
        require(plain, f"reward {name} {words}: it must return a list with one number for each")
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
