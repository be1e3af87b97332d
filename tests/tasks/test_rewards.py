"""A reward function of someone else's: each way of failing is named, shown, and survived if asked."""

from __future__ import annotations

import functools
import json
import math
import os
import re
import signal
import threading
import time

import pytest
import torch

from dtm.errors import ConfigError, DtmWarning, RewardError
from dtm.loading import load_object
from dtm.tasks.rewards import MAX_HANGS, Scorer, require_call

PROMPTS = ["p0", "p1", "p2", "p3"]
COMPLETIONS = ["good", "fine", "bad", "nice"]


def score(function, **options):
    return Scorer(function, "mine", **options)(PROMPTS, COMPLETIONS, {})


def on_bad(answer):
    """A reward of 1, but ``answer()`` for the completion "bad"."""
    return lambda prompts, completions: [answer() if c == "bad" else 1.0 for c in completions]


def divide():
    return 1 / 0


def hold():
    """Hold the interpreter for ages, as a thread that nothing can stop."""
    return re.match("(a+)+$", "a" * 60 + "b")


class Awkward:
    def __init__(self, problem):
        self.problem = problem

    def __float__(self):
        raise self.problem


def test_numbers_of_any_kind_become_floats():
    assert score(lambda prompts, completions: [1, True, 0.5, torch.tensor(2.0)]) == [1.0, 1.0, 0.5, 2.0]
    assert score(lambda prompts, completions: torch.arange(4)) == [0.0, 1.0, 2.0, 3.0]
    assert score(lambda prompts, completions: (0.1, 0.2, 0.3, 0.4)) == [0.1, 0.2, 0.3, 0.4]


def test_a_function_may_leave_the_prompts_to_its_keywords():
    """TRL's common form, def reward(completions, **kwargs)."""

    def reward(completions, **columns):
        return [float(len(columns["prompts"]))] * len(completions)

    assert set(score(reward)) == {4.0}


def test_columns_arrive_by_name():
    def reward(prompts, completions, answer):
        return [float(p == a) for p, a in zip(prompts, answer, strict=True)]

    scorer = Scorer(reward, "mine")
    assert scorer(["x", "y"], ["a", "b"], {"answer": ["x", "z"]}) == [1.0, 0.0]


@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_none_always_skips_its_sample(policy):
    assert score(on_bad(lambda: None), on_error=policy) == [1.0, 1.0, None, 1.0]


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, -math.inf, "high", "0.5", b"1", [1.0], {"a": 1.0}, 10**400, 1e300],
    ids=lambda value: repr(value)[:9],
)
def test_what_is_not_a_finite_number_is_shown_with_its_sample(value):
    with pytest.raises(RewardError) as caught:
        score(on_bad(lambda: value))
    message = str(caught.value)
    assert f"reward mine returned {value!r}"[:300] in message
    assert "'p2'" in message
    assert "'bad'" in message
    assert "--reward.on-error skip" in message
    assert score(on_bad(lambda: value), on_error="skip") == [1.0, 1.0, None, 1.0]


def test_an_exception_is_named_with_the_sample_that_raised_it():
    with pytest.raises(RewardError, match="reward mine raised ZeroDivisionError: division by zero") as caught:
        score(on_bad(divide))
    assert "'p2'" in str(caught.value)
    assert "'bad'" in str(caught.value)
    assert "in divide" in str(caught.value.__cause__)


def test_an_exception_is_shown_with_the_line_of_the_reward_and_not_of_what_it_calls():
    class Parser:
        def __call__(self, prompts, completions):
            return json.loads("{")

    first = Parser.__call__.__code__.co_firstlineno
    for function in (Parser(), functools.partial(Parser()), Parser().__call__):
        with (
            pytest.warns(DtmWarning),
            pytest.raises(RewardError, match=rf"\(test_rewards\.py, line {first + 1}\)"),
        ):
            Scorer(function, "mine")(["p"], ["c"], {})


def test_an_exception_skips_its_own_sample_alone():
    assert score(on_bad(divide), on_error="skip") == [1.0, 1.0, None, 1.0]


def test_a_function_that_exits_does_not_take_the_run_with_it():
    with pytest.raises(RewardError, match="raised SystemExit: 3"):
        score(on_bad(lambda: exit(3)))


def test_an_exception_keeps_columns_and_samples_together():
    def reward(prompts, completions, answer):
        if "bad" in completions:
            raise KeyError("bad")
        return [float(a) for a in answer]

    scorer = Scorer(reward, "mine", "skip")
    assert scorer(PROMPTS, COMPLETIONS, {"answer": [1, 2, 3, 4]}) == [1.0, 2.0, None, 4.0]


def test_a_function_that_holds_the_interpreter_is_killed_at_the_deadline():
    with pytest.raises(RewardError, match=r"reward mine did not answer within 0\.1 s \(reward\.timeout\)"):
        score(on_bad(hold), timeout=0.1)
    assert score(on_bad(hold), timeout=0.5, on_error="skip") == [1.0, 1.0, None, 1.0]


def test_a_function_in_this_process_is_abandoned_at_the_deadline():
    over = threading.Event()
    try:
        with pytest.raises(RewardError, match=r"did not answer within 0\.05 s"):
            score(on_bad(lambda: over.wait(60)), timeout=0.05, in_process=True)
    finally:
        over.set()
        for thread in threading.enumerate():
            if thread.name == "reward mine":
                thread.join()  # a later fork would copy whatever lock it holds


class Stopped(Exception):
    """As `Interrupted` of a run."""


@pytest.mark.parametrize("workers", [1, 2])
def test_a_requested_stop_ends_a_hanging_call_without_trying_the_samples_one_by_one(
    workers, tmp_path, monkeypatch
):
    """Every sample hangs."""
    monkeypatch.setattr("dtm.workers.POLL", 0.01)
    called = tmp_path / "called"

    def reward(prompts, completions):
        with called.open("a") as log:
            log.write("x")
        hold()

    def between():
        if called.exists() and len(called.read_text()) >= workers:
            raise Stopped

    scorer = Scorer(reward, "mine", timeout=20.0, workers=workers)
    with pytest.raises(Stopped):
        scorer.score(PROMPTS, COMPLETIONS, {}, between)
    assert called.read_text() == "x" * workers
    assert all(worker._child is None for worker in scorer._pool)  # killed


def test_a_requested_stop_abandons_a_hanging_call_in_this_process(monkeypatch):
    monkeypatch.setattr("dtm.tasks.rewards.POLL", 0.01)
    called, over = threading.Event(), threading.Event()

    def reward(prompts, completions):
        called.set()
        over.wait(60)

    def between():
        if called.is_set():
            raise Stopped

    scorer = Scorer(reward, "mine", timeout=20.0, in_process=True)
    try:
        with pytest.raises(Stopped):
            scorer.score(PROMPTS, COMPLETIONS, {}, between)
    finally:
        over.set()
        for thread in threading.enumerate():
            if thread.name == "reward mine":
                thread.join()


def test_a_slow_call_that_nobody_stops_is_waited_for(monkeypatch):
    monkeypatch.setattr("dtm.workers.POLL", 0.01)
    looks = []

    def reward(prompts, completions):
        time.sleep(0.2)
        return [1.0] * len(prompts)

    found = Scorer(reward, "mine").score(PROMPTS, COMPLETIONS, {}, lambda: looks.append(None))
    assert found.rewards == [1.0] * len(PROMPTS)
    assert looks


def test_a_function_that_always_hangs_stops_the_run_in_any_case(tmp_path):
    many, called = [str(number) for number in range(MAX_HANGS + 3)], tmp_path / "called"

    def reward(prompts, completions):
        with called.open("a") as log:
            log.write("x")
        hold()

    with pytest.raises(RewardError, match="did not answer"):
        Scorer(reward, "mine", "skip", timeout=0.05)(many, many, {})
    assert len(called.read_text()) == 1 + MAX_HANGS + 1  # the batch, those tolerated, and one too many


def test_a_function_that_ends_its_process_says_what_to_do():
    with pytest.raises(RewardError, match=r"reward mine ended its process.*--reward\.in-process") as caught:
        score(on_bad(lambda: os.kill(os.getpid(), signal.SIGKILL)))
    assert "'bad'" in str(caught.value)


def test_a_function_that_forks_leaves_no_process():
    ours, theirs = os.pipe()

    def reward(prompts, completions):
        if os.fork() == 0:
            signal.pause()
        return [1.0] * len(completions)

    scorer = Scorer(reward, "mine")
    assert [scorer(["p"], ["c"], {}) for _ in range(3)] == [[1.0]] * 3
    os.close(theirs)
    del scorer
    assert os.read(ours, 1) == b"", "the pipe is closed once nobody holds its other end"
    os.close(ours)


def test_a_function_that_forks_leaves_no_process_when_the_run_is_killed():
    ours, theirs = os.pipe()

    def reward(prompts, completions):
        if os.fork() == 0:
            signal.pause()
        return [1.0] * len(completions)

    if (run := os.fork()) == 0:
        Scorer(reward, "mine")(["p"], ["c"], {})
        os.kill(os.getpid(), signal.SIGKILL)
    os.close(theirs)
    os.waitpid(run, 0)
    assert os.read(ours, 1) == b"", "the pipe is closed once nobody holds its other end"
    os.close(ours)


def test_a_copy_made_by_fork_does_not_answer_or_train_on():
    def reward(prompts, completions):
        os.fork()
        return [float(c == "good") for c in completions]

    for in_process in (False, True):
        scorer = Scorer(reward, "mine", in_process=in_process)
        assert [scorer(["p"], [text], {}) for text in ("good", "bad")] == [[1.0], [0.0]]


@pytest.mark.parametrize("in_process", [False, True])
def test_a_function_gets_copies_of_what_it_is_given(in_process):
    def reward(prompts, completions, answer):
        completions[0].append("changed")
        for given in (prompts, completions, answer):
            given.reverse()
        return [1.0, 2.0]

    prompts, completions, columns = ["p", "q"], [["a"], ["b"]], {"answer": [1, 2]}
    assert Scorer(reward, "mine", in_process=in_process)(prompts, completions, columns) == [1.0, 2.0]
    assert (prompts, completions, columns) == (["p", "q"], [["a"], ["b"]], {"answer": [1, 2]})


def test_workers_share_a_batch_in_order():
    def reward(prompts, completions, answer):
        return [len(completions) + number / 10 for number in answer]

    scorer = Scorer(reward, "mine", workers=2)
    rewards = scorer(list("abcde"), list("abcde"), {"answer": [1, 2, 3, 4, 5]})
    assert rewards == [3.1, 3.2, 3.3, 2.4, 2.5]


def test_samples_that_cannot_be_sent_say_what_to_do():
    with pytest.raises(RewardError, match=r"cannot be sent to the process.*--reward\.in-process"):
        Scorer(lambda prompts, completions: [1.0], "mine")([lambda: 1], ["c"], {})


@pytest.mark.parametrize("problem", [OverflowError("too large"), RuntimeError("no"), RecursionError("deep")])
def test_a_value_whose_conversion_raises_is_named(problem):
    with pytest.raises(RewardError, match=f"not a number.*{type(problem).__name__}: {problem}"):
        score(on_bad(lambda: Awkward(problem)))


def test_skipped_samples_are_named_for_what_they_are():
    with pytest.warns(DtmWarning, match="returned nan, not a finite number: the sample is skipped"):
        assert score(on_bad(lambda: math.nan), on_error="skip") == [1.0, 1.0, None, 1.0]
    with pytest.raises(RewardError, match=r"no reward to any of 4 .*returned nan, not .* \(4 of 4\)"):
        score(lambda prompts, completions: [math.nan] * 4, on_error="skip")
    with pytest.raises(RewardError, match=r"raised ZeroDivisionError: division by zero .* \(4 of 4\)"):
        score(lambda prompts, completions: divide(), on_error="skip")
    with pytest.raises(RewardError, match=r"no reward to any of 4 completions: it returned None"):
        score(lambda prompts, completions: [None] * 4)


@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_a_wrong_number_of_rewards_is_an_error_with_both_numbers(policy):
    with pytest.raises(RewardError, match="reward mine returned 3 values for 4 completions"):
        score(lambda prompts, completions: [1.0] * 3, on_error=policy)


@pytest.mark.parametrize(
    "value",
    [0.5, None, (x for x in range(4)), dict.fromkeys(range(4)), b"1234", "1234", {1.0, 2.0, 3.0, 4.0}],
)
def test_what_is_not_a_list_is_an_error_with_its_type(value):
    with pytest.raises(RewardError, match=f"must return a list of numbers, got {type(value).__name__}"):
        score(lambda prompts, completions: value)


@pytest.mark.parametrize("answer", [0.5, None, [], [1.0, 2.0]])
def test_a_wrong_answer_to_one_sample_is_a_reward_error_too(answer):
    """The batch fails, and when asked one by one the function does not return a list of one."""

    def reward(prompts, completions):
        if len(completions) > 1:
            raise ValueError("one at a time")
        return answer

    with pytest.raises(RewardError, match="reward mine"):
        score(reward)


def test_a_reward_outside_of_the_declared_range_is_told_once():
    scorer = Scorer(lambda prompts, completions: [0.5, 9.5, -3.0], "mine", declared=(0.0, 1.0))
    with pytest.warns(DtmWarning, match=r"mine returned 9\.5, outside of \[0, 1\]") as told:
        assert [scorer(["p"] * 3, ["c"] * 3, {}) for _ in range(2)] == [[0.5, 9.5, -3.0]] * 2
    assert len(told) == 1


def test_whatever_can_be_called_with_the_columns_is_a_reward():
    class Reward:
        def __call__(self, prompts, completions, **columns):
            return [1.0]

        def method(self, prompts, completions, answer):
            return [1.0]

    def each(text):
        return 1.0

    @functools.wraps(each)
    def of_all(completions, **columns):
        return list(map(each, completions))

    need_scale = functools.partial(lambda prompts, completions, answer, scale: [scale], scale=1)
    for function in (Reward(), Reward().method, of_all, need_scale):
        require_call(function, "mine", ["answer"])
        assert Scorer(function, "mine")(["p"], ["c"], {"answer": ["a"]}) == [1.0]


def test_what_a_function_takes_is_compared_with_the_columns_before_it_is_called():
    require_call(lambda prompts, completions, **columns: [], "mine", ["answer"])
    require_call(lambda *, answer, **rest: [], "mine", ["answer"])
    require_call(max, "mine", ["answer"])  # it does not say what it takes
    with pytest.raises(ConfigError, match=r"mine cannot be called: missing a required .*'answer'.*by name"):
        require_call(lambda prompts, completions, answer: [], "mine", [])
    with pytest.raises(ConfigError, match=r"unexpected keyword argument 'answer'.*\*\*columns"):
        require_call(lambda prompts, completions: [], "mine", ["answer"])


def test_a_function_that_only_promises_its_rewards_is_refused_before_it_is_called():
    async def later(prompts, completions):
        return [1.0]

    def lazy(prompts, completions):
        yield 1.0

    class Later:
        async def __call__(self, prompts, completions):
            return [1.0]

    for function, words in ((later, "async"), (functools.partial(later), "async"), (Later(), "async")):
        with pytest.raises(ConfigError, match=f"reward mine is an {words} function: it must return a list"):
            require_call(function, "mine", [])
    with pytest.raises(ConfigError, match="reward mine is a generator"):
        require_call(lazy, "mine", [])


def test_a_long_completion_is_cut_in_the_message():
    with pytest.raises(RewardError) as caught:
        Scorer(lambda prompts, completions: [math.nan], "mine")(["p"], ["x" * 5000], {})
    assert "(5002 characters)" in str(caught.value)
    assert len(str(caught.value)) < 1000


# ── finding it ────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def rewards_file(tmp_path):
    path = tmp_path / "my_rewards.py"
    path.write_text(
        "LIMIT = 3\n\ndef length(prompts, completions):\n    return [len(c) for c in completions]\n"
    )
    return path


def test_a_function_is_found_in_a_file_and_in_a_module(rewards_file, monkeypatch):
    assert load_object(f"{rewards_file}:length", "reward")([], ["abc"]) == [3]
    monkeypatch.chdir(rewards_file.parent)
    assert load_object("my_rewards:length", "reward")([], ["abc"]) == [3]


def test_an_edited_file_is_read_again(rewards_file):
    load_object(f"{rewards_file}:length", "reward")
    rewards_file.write_text(
        "def length(prompts, completions):\n    return [0.0] * len(completions) # edited\n"
    )
    assert load_object(f"{rewards_file}:length", "reward")([], ["abc"]) == [0.0]


@pytest.mark.parametrize("spec", ["length", "my_rewards:", ":length"])
def test_a_name_without_its_half_is_explained(spec):
    with pytest.raises(ConfigError, match=r"must be written module:name or path/to/file\.py:name"):
        load_object(spec, "reward")


@pytest.mark.parametrize("spec", ["<stdin>:length", "my_rewards:make.<locals>.length", "__main__:no_such"])
def test_a_function_without_a_place_in_a_file_is_not_searched_for(spec):
    with pytest.raises(ConfigError, match=r"cannot be found again.*dtm\.Run\.open\(…, reward=…\)"):
        load_object(spec, "reward")


def test_a_missing_module_file_or_function_is_named(rewards_file):
    with pytest.raises(ConfigError, match="No module named 'no_such_module'"):
        load_object("no_such_module:length", "reward")
    with pytest.raises(ConfigError, match=r"there is no file nowhere/rewards\.py"):
        load_object("nowhere/rewards.py:length", "reward")
    with pytest.raises(ConfigError, match=r"no 'lenght' in .*Did you mean 'length'"):
        load_object(f"{rewards_file}:lenght", "reward")
    with pytest.raises(ConfigError, match=r"'LIMIT' in .* cannot be called"):
        load_object(f"{rewards_file}:LIMIT", "reward")


def test_a_file_that_cannot_be_imported_is_an_error_for_the_user(rewards_file):
    rewards_file.write_text("def length(:\n")
    with pytest.raises(ConfigError, match="my_rewards"):
        load_object(f"{rewards_file}:length", "reward")
    with pytest.raises(ConfigError, match=r"SyntaxError: .*\(my_rewards\.py, line 1\)$"):
        load_object(f"{rewards_file}:length", "reward")
    rewards_file.write_text("import math\nimport no_such_module\n")
    with pytest.raises(ConfigError, match=r"No module named 'no_such_module' \(my_rewards\.py, line 2\)"):
        load_object(f"{rewards_file}:length", "reward")
