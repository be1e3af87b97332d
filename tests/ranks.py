"""Groups of real processes for tests. They are forked from one server that has imported torch already."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import socket
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

LIMIT = 60.0
"""Seconds until a group that does not answer fails the test."""
SERVER = multiprocessing.get_context("forkserver")
SERVER.set_forkserver_preload(["dtm.api", "dtm.distributed.processes", "torch._dynamo", "pytest"])


class Failed:
    """An exception of a process."""

    def __init__(self, problem: BaseException) -> None:
        self.kind, self.text = type(problem).__name__, str(problem)
        self.trace = traceback.format_exc()

    def __repr__(self) -> str:
        return self.trace


def outcomes(size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What a function returns in each process of a group, or `Failed`; None: the process has ended."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port = bound.getsockname()[1]
    pipes, running = [], []
    for rank in range(size):
        ours, theirs = SERVER.Pipe()
        process = SERVER.Process(target=_serve, args=(theirs, rank, size, port, function, arguments))
        process.start()
        theirs.close()
        pipes.append(ours)
        running.append(process)
    try:
        return [_received(pipe) for pipe in pipes]
    finally:
        for process in running:
            process.kill()
            process.join()


def each(size: int, function: Callable[..., Any], *arguments: Any) -> list[Any]:
    """What a function returns in each process of a group; none may fail."""
    found = outcomes(size, function, *arguments)
    assert not [one for one in found if one is None or isinstance(one, Failed)], found
    return found


def _received(pipe: Connection) -> Any:
    assert pipe.poll(LIMIT), "a process did not answer"
    try:
        return pickle.loads(pipe.recv_bytes())
    except EOFError:
        return None


def _serve(
    pipe: Connection,
    rank: int,
    size: int,
    port: int,
    function: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    import torch

    from dtm.distributed.launch import environment

    torch.set_num_threads(1)
    os.environ.update(environment(rank, size, port))
    try:
        result = function(*arguments)
    except BaseException as problem:
        result = Failed(problem)
    pipe.send_bytes(pickle.dumps(result))  # tensors by value: this process may end before they are read
