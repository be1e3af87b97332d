"""Signals end a command with a sentence and the usual exit code; a child ends with its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from dtm import cli
from dtm.errors import DtmError
from dtm.runs import interrupts
from dtm.runs.interrupts import ENDS_WITH_PARENT, Interrupted, Interrupts, end_with_parent


def stop_by(number: int):
    """A command that receives a signal before a run has begun, or after its last step."""

    def command(_arguments: list[str]) -> int:
        os.kill(os.getpid(), number)
        raise AssertionError("the signal has ended it")

    return command


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_outside_the_loop_ends_with_a_sentence(number, code, monkeypatch, capsys):
    before = signal.getsignal(number)
    monkeypatch.setitem(cli.COMMANDS, "train", stop_by(number))
    assert cli.main(["train"]) == code
    assert capsys.readouterr().err.startswith(f"dtm: stopped by {number.name}; --resume continues")
    assert signal.getsignal(number) is before


def test_an_error_that_a_signal_has_caused_is_no_traceback(monkeypatch, capsys):
    """As in the middle of an import."""

    def command(_arguments: list[str]) -> int:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
        except KeyboardInterrupt:
            raise RecursionError from None
        return 0

    monkeypatch.setitem(cli.COMMANDS, "train", command)
    assert cli.main(["train"]) == 143
    assert "stopped by SIGTERM" in capsys.readouterr().err


def test_a_sweep_that_was_stopped_has_the_exit_code_of_its_signal(monkeypatch, capsys):
    def command(_arguments: list[str]) -> int:
        with Interrupts() as stops:
            os.kill(os.getpid(), signal.SIGTERM)
            with pytest.raises(Interrupted):
                stops.check()
        raise DtmError("stopped; every run has saved itself")

    monkeypatch.setitem(cli.COMMANDS, "sweep", command)
    assert cli.main(["sweep"]) == 143
    assert cli.main(["no-such-command"]) == 2  # an earlier signal does not count
    assert "every run has saved itself" in capsys.readouterr().err


def test_a_child_is_asked_to_stop_when_its_parent_is_gone(monkeypatch):
    """The parent holds the other end of standard input; the kernel closes it, however the parent ends."""
    read, write = os.pipe()
    killed = threading.Event()
    reader = os.read
    monkeypatch.setenv(ENDS_WITH_PARENT, "1")
    monkeypatch.setattr(interrupts.os, "read", lambda _, count: reader(read, count))
    monkeypatch.setattr(
        interrupts.os,
        "kill",
        lambda pid, number: (pid, number) == (os.getpid(), signal.SIGTERM) and killed.set(),
    )
    end_with_parent()
    assert ENDS_WITH_PARENT not in os.environ  # not for its own children
    assert not killed.wait(0.02)
    os.close(write)
    assert killed.wait(10)


def test_a_command_of_a_user_does_not_read_its_standard_input(monkeypatch):
    monkeypatch.delenv(ENDS_WITH_PARENT, raising=False)
    threads = threading.active_count()
    end_with_parent()
    assert threading.active_count() == threads


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGINT", 130)])
def test_a_signal_within_text_that_is_executed_keeps_its_exit_code(name, code, tmp_path):
    """Imports execute text; Python then ends `python -m dtm` with the code of Ctrl-C."""
    (tmp_path / "command.py").write_text(
        "import os, signal, sys, dtm.cli\n"
        f"text = 'os.kill(os.getpid(), signal.{name}); [None for _ in range(1000)]'\n"
        "dtm.cli.COMMANDS['verify'] = lambda arguments: exec(text, globals())\n"
        "sys.exit(dtm.cli.main(['verify']))\n"
    )
    call = [sys.executable, "-m", "command"]
    ended = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == code
    assert f"dtm: stopped by {name}" in ended.stderr
