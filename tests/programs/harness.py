"""A program run by an executor, and compared with its run without one."""

from __future__ import annotations

import contextlib
import enum
import functools
import importlib
import os
import pkgutil
import random
import signal
import warnings
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch

from tests.programs import collection
from tests.programs.executors import EXECUTORS, Executor, plain
from tests.programs.writing import PROGRAMS, Program
from tests.support.difference import first_difference
from tests.support.observe import observe
from torch_jax import config

for _module in pkgutil.iter_modules(collection.__path__):
    importlib.import_module(f"{collection.__name__}.{_module.name}")

SECONDS = 60  # a program that takes longer hangs, on the slowest machine beside others


class Verdict(enum.Enum):
    """What became of a program."""

    EQUAL = "equal"
    VERSION = "version"  # equal but for version counters
    WRONG = "wrong"


class Raised(NamedTuple):
    """The end of a program that raised."""

    kind: str
    words: str


class Outcome(NamedTuple):
    """A verdict, and the first difference in words."""

    verdict: Verdict
    words: str = ""


class Hangs(BaseException):
    """A program has not come to its end in time; no handler of a program catches this."""


# What a program may leave changed: how it is read, and how it is put back.
_STATE: tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...] = (
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (lambda: dict(os.environ), lambda old: (os.environ.clear(), os.environ.update(old))),
)


@contextlib.contextmanager
def _world() -> Iterator[None]:
    """The same seeds at the beginning, and the state of the process as it was at the end."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    before = [read() for read, _ in _STATE]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for (_, put_back), value in zip(_STATE, before, strict=True):
            put_back(value)


def _hangs(*_: Any) -> None:
    raise Hangs


@contextlib.contextmanager
def _time_limit() -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, _hangs)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextlib.contextmanager
def _settings(executor: Executor) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for name, value in executor.settings.items():
            stack.enter_context(config.temporarily(name, value))
        yield


def shown(program: Program, executor: Executor) -> list[Any]:
    """What the program yields, observed at each yield; the type of what it raises comes last."""
    found: list[Any] = []
    with _world(), _time_limit(), _settings(executor):
        steps = program(executor.compile)
        try:
            for value in steps:
                found.append(observe(value))
        except (Exception, Hangs) as error:
            found.append(Raised(type(error).__name__, str(error)[:300]))
        finally:
            with contextlib.suppress(Exception):
                steps.close()
    return found


@functools.cache
def _expected(name: str) -> list[Any]:
    found = shown(PROGRAMS[name], Executor(plain))
    assert not isinstance(found[-1], Raised), (name, found[-1])
    assert len(found) > 1, (name, "a program shows several calls")
    return found


def judge(program: Program, expected: list[Any], executor: Executor) -> Outcome:
    """Run a program, and compare what it shows."""
    words = first_difference(shown(program, executor), expected)
    if words is None:
        return Outcome(Verdict.EQUAL)
    version = words.partition(":")[0].endswith("/_version")
    return Outcome(Verdict.VERSION if version else Verdict.WRONG, f"yield {words}")


def run(name: str, executor: str) -> Outcome:
    """The outcome of a program of the collection."""
    return judge(PROGRAMS[name], _expected(name), EXECUTORS.get(executor, Executor(plain)))
