"""A process with eight devices: a session of pytest that runs the tests it is asked for."""

from __future__ import annotations

import functools
import os
import signal
import tempfile
from multiprocessing import Process
from multiprocessing.connection import Connection
from pathlib import Path
from typing import IO, NamedTuple

import pytest
from _pytest.runner import runtestprotocol

from tests.support import processes

FLAG = "--xla_force_host_platform_device_count=8"
SECONDS = 300.0  # what a test may take
HERE = Path(__file__).parent


class Server(NamedTuple):
    """The process, where it is asked, and what it prints."""

    process: Process
    pipe: Connection
    log: IO[str]


def is_here() -> bool:
    """Return whether this process has eight devices."""
    return FLAG in os.environ.get("XLA_FLAGS", "")


def run(module: str, name: str) -> list[tuple[str, str]]:
    """Run a test, and return the outcome and the text of each of its parts that does not pass."""
    server, is_in_time = _start(), True
    try:
        server.pipe.send((module, name))
        is_in_time = server.pipe.poll(SECONDS)
        if not is_in_time:
            os.kill(server.process.pid, signal.SIGABRT)  # which prints what each thread does
        return server.pipe.recv()
    except (EOFError, OSError):
        end()
        status = f"ended with status {server.process.exitcode}"
        return [("failed", status if is_in_time else f"took more than {SECONDS:.0f} s")]
    finally:
        print(server.log.read(), end="")


def end() -> None:
    """Let the process end, where there is one; the next test starts another."""
    if _start.cache_info().currsize:
        server = _start()
        server.pipe.close()
        server.process.join(30)
        server.process.kill()
        _start.cache_clear()


@functools.cache
def _start() -> Server:
    log = tempfile.NamedTemporaryFile("r")  # closed with the last test
    pipe, its_pipe = processes.forks().Pipe()
    flags = f"{os.environ.get('XLA_FLAGS', '')} {FLAG}"
    given = (processes.environment({"XLA_FLAGS": flags}), log.name, its_pipe)
    process = processes.forks().Process(target=_serve, args=given, daemon=True)
    process.start()
    its_pipe.close()
    return Server(process, pipe, log)


# --- in the other process -------------------------------------------------------------------------


def _serve(variables: dict[str, str], log: str, pipe: Connection) -> None:
    processes.settle(variables, log, log)
    pytest.main(["-sq", "--no-header", "-p", "no:cacheprovider", str(HERE)], [_Asked(pipe)])


class _Asked:
    """A plugin of pytest: tests run as they are asked for, until nobody is there to ask."""

    def __init__(self, pipe: Connection):
        self.pipe = pipe

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run tests, and say what became of them."""
        items = {(item.module.__name__, item.name): item for item in session.items}
        while True:
            try:
                item = items[self.pipe.recv()]
            except EOFError:
                return True
            self.pipe.send([_outcome(r) for r in runtestprotocol(item, log=False) if not r.passed])


def _outcome(report: pytest.TestReport) -> tuple[str, str]:
    if report.skipped:
        return report.outcome, report.longrepr[2]
    return report.outcome, report.longreprtext
