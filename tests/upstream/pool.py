"""Processes that serve one test after the other, in place of new ones for each test.

A process that imports PyTorch and JAX takes seconds, and most tests take less. Where all ranks of a
test have ended well, the next test has the same processes; after any failure it has new ones.
"""

from __future__ import annotations

import contextlib
import faulthandler
import importlib
import os
import signal
import sys
import time
import traceback
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import multiprocessing
from torch.testing._internal import common_distributed

GOOD = (0, *(skip.exit_code for skip in common_distributed.TEST_SKIPS.values()))
"""Exit codes after which a process may be used again."""


class Rank:
    """A process that runs tests; to a test, the process that runs this test."""

    def __init__(self, rank: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._near, far = context.Pipe()
        self._process = context.Process(target=serve, args=(far, sys.path), name=f"rank {rank}")
        self._process.daemon = True
        self._process.start()
        self.pid = self._process.pid
        self.error = ""
        self._code: int | None = 0

    def begin(self, *task: Any) -> None:
        """Run a test: its module, class, rank, name, file of the store, and further arguments."""
        self._code, self.error = None, ""
        self._near.send(task)

    @property
    def exitcode(self) -> int | None:
        """How the test has ended in this process; None while it runs."""
        if self._code is None:
            try:
                if self._near.poll():
                    self._code, self.error = self._near.recv()
            except (EOFError, ConnectionError):
                self._process.join()
                self._code = self._process.exitcode
        return self._code

    def is_alive(self) -> bool:
        """Whether the test is under way."""
        return self.exitcode is None

    def join(self, timeout: float | None = None) -> None:
        """Wait for the test."""
        with contextlib.suppress(EOFError, ConnectionError):
            self._near.poll(timeout)

    def terminate(self) -> None:
        """End the test where it still runs, and the process with it."""
        if self.exitcode is None:
            self.end()

    def end(self) -> None:
        """End the process."""
        self._code = self._code if self._code is not None else -signal.SIGKILL
        self._process.kill()
        self._process.join()
        self._near.close()

    def is_usable(self) -> bool:
        """Whether another test may have this process."""
        return self._process.is_alive() and self.exitcode in GOOD

    # to a test, the pipe that its errors come through
    def recv(self) -> str:
        """The error that the test has raised here."""
        return self.error

    def send(self, _event: Any) -> None:
        """Have the process print where it is."""
        os.kill(self._process.pid or 0, signal.SIGUSR1)

    def poll(self, _timeout: float = 0) -> bool:
        """Whether a traceback has come: no, but it is being printed."""
        time.sleep(1)
        return False

    def close(self) -> None:
        """Leave the process for the next test."""


_ranks: list[Rank] = []


def take(count: int) -> list[Rank]:
    """So many processes that have nothing to do, and that have met before or never."""
    if len(_ranks) != count or not all(rank.is_usable() for rank in _ranks):
        end()
        _ranks.extend(Rank(number) for number in range(count))
    return list(_ranks)


def end() -> None:
    """End all processes."""
    while _ranks:
        _ranks.pop().end()


def start_again(case: Any) -> None:
    """Give the next test of a class new processes where a test has failed in those that it has.

    ``MultiProcContinuousTest`` would skip all later tests of the class.
    """
    if vars(case).get("poison_pill"):
        for process in case.processes:
            process.kill()
        case.poison_pill = case._processes_spawned = False


def start_processes(self: Any, _process: Any) -> None:
    """In place of ``MultiProcessTestCase._start_processes``."""
    self.processes = take(int(self.world_size))
    own = type(self)
    options = {"fake_pg": getattr(self, "fake_pg", False)}
    for number, rank in enumerate(self.processes):
        self.pid_to_pipe[rank.pid] = rank
        name = (own.__module__, own.__qualname__, number, self._current_test_name())
        rank.begin(*name, self.file_name, options)


def serve(connection: Any, path: list[str]) -> None:
    """Run tests until the other side closes; the main function of a process."""
    sys.path[:] = path
    torch.set_num_threads(1)
    faulthandler.register(signal.SIGUSR1)
    while True:
        try:
            task = connection.recv()
        except EOFError:
            return
        connection.send(_run(*task))


def _run(module: str, own: str, rank: int, test: str, file: str, options: dict) -> tuple[Any, str]:
    near, far = multiprocessing.Pipe()
    case = getattr(importlib.import_module(module), own)
    with _undone():
        try:
            case._run(rank, test, file, far, **options)
            code: Any = 0
        except SystemExit as ended:
            code = ended.code or 0
        except BaseException:  # outside of the test's own function
            return (
                common_distributed.MultiProcessTestCase.TEST_ERROR_EXIT_CODE,
                traceback.format_exc(),
            )
    return code, near.recv() if code not in GOOD and near.poll() else ""


@contextlib.contextmanager
def _undone() -> Iterator[None]:
    """What a test may leave behind in its process is put back."""
    before = dict(os.environ)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)
        torch.use_deterministic_algorithms(False)
        if dist.is_initialized():
            with contextlib.suppress(Exception):
                dist.destroy_process_group()
        random = sys.modules.get("torch.distributed.tensor._random")
        if random is not None:
            random._rng_tracker = None
