"""Collectives under way: the results of ``async_op=True``, and the thread that runs programs.

All programs of a process run on one thread, one after the other, in the order of their calls,
whichever thread calls: JAX pairs the programs of processes by their order, and its collectives on
the CPU block the launching thread until all processes have come.
"""

from __future__ import annotations

import atexit
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import jax
import torch
import torch.distributed as dist

from torch_jax._private import pytorch
from torch_jax.budgets import SECONDS_AT_EXIT, SECONDS_BETWEEN_QUESTIONS, SECONDS_OF_A_PAUSE
from torch_jax.distributed import agreement, joining
from torch_jax.memory.storage import wrap


def write(outputs: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> None:
    """Write new values to tensors in place, even through views; autograd does not see it.

    Versions do not rise, as they do not in PyTorch: a parameter that is broadcast may have views
    that autograd has seen.
    """
    for output, value in zip(outputs, values, strict=True):
        mode = torch.inference_mode if output.is_inference() else torch.no_grad
        if output.numel():
            with mode(), pytorch.versions_kept():
                output.copy_(value.view(output.shape))


class _Work(dist.Work):
    """The common part of both kinds of work: a future is completed on a thread of its own.

    Callbacks of a future may wait for other collectives, and must not hold up these.
    """

    def __init__(self, outputs: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.outputs = list(outputs)
        self._future: Any = None

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> list[torch.Tensor]:
        """Return the tensors with the results."""
        self.wait()
        return self.outputs

    def get_future(self) -> Any:
        """Return a ``torch.futures.Future`` of the tensors with the results."""
        if self._future is None:
            over: torch.futures.Future[None] = torch.futures.Future()
            # C++, as DDP's reducer, knows errors of callbacks only: `set_exception` is Python's
            self._future = over.then(lambda _: self.result())

            def complete() -> None:
                with contextlib.suppress(Exception):  # which the future's callback meets again
                    self.wait()
                over.set_result(None)

            threading.Thread(target=complete, name="torch_jax future", daemon=True).start()
        return self._future


class ProgramWork(_Work):
    """A program of JAX's that waits for its turn, runs, or has run."""

    def __init__(
        self,
        name: str,
        call: agreement.Call,
        program: Callable[[], list[jax.Array]],
        timeout: timedelta,
        outputs: Sequence[torch.Tensor],
    ) -> None:
        super().__init__(outputs)
        self.call, self.is_launched = call, False
        self.name, self._program, self._timeout = name, program, timeout
        self._done = threading.Event()
        self._error: Exception | None = None

    def run(self) -> None:
        """Run the program and write its results; the launching thread calls it."""
        try:
            LAUNCHER.check()
            self.call.wait(self._timeout)
            self.is_launched = True
            results = self._program()
            LAUNCHER.check()  # the caller has given up, and may use the tensors
            write(self.outputs, [wrap(result) for result in results])
        except TypeError as error:  # arrays that the program does not take: it has not run
            self._error = error
        except TimeoutError as error:  # some processes may come yet, and would be out of step
            self._error = LAUNCHER.give_up(joining.failed(self.name, error))
        except Exception as error:
            self._error = joining.failed(self.name, error)
        finally:
            del self._program  # and its arrays
            self._done.set()

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the results are in their tensors; raise the error of the work."""
        limit = timeout if timeout else self._timeout
        seconds = limit.total_seconds()
        if not self._done.wait(min(seconds, SECONDS_BETWEEN_QUESTIONS)):
            self._wait_on(limit, time.monotonic() + seconds - SECONDS_BETWEEN_QUESTIONS)
        if self._error is not None:
            raise self._error
        return True

    def _wait_on(self, limit: timedelta, end: float) -> None:
        """Wait for long work, and compare the call that holds it up with other processes'."""
        try:
            work = self
            while not self._done.wait(SECONDS_OF_A_PAUSE):
                ahead = LAUNCHER.running or self
                if ahead is not work:
                    work.settle()
                    work = ahead
                work.call.show()
                if work.is_launched:
                    work.call.is_agreed()
                if time.monotonic() > end:
                    raise work.call.late(limit)
            work.settle()
        except Exception as error:
            raise LAUNCHER.give_up(joining.failed(self.name, error)) from error

    def settle(self) -> None:
        """Take back the reports of a call that took long."""
        if self.is_success():
            self.call.came_through()

    def is_completed(self) -> bool:
        """Return whether it is over, with or without an error."""
        return self._done.is_set()

    def is_success(self) -> bool:
        """Return whether the results are in their tensors."""
        return self._done.is_set() and self._error is None

    def exception(self) -> Exception | None:
        """Return the error of the work, or None."""
        return self._error


class HostWork(_Work):
    """Work of PyTorch's gloo on copies of tensors; results are written when they are asked for.

    Without copies it is on the tensors themselves, which are those of the CPU.
    """

    def __init__(
        self,
        name: str,
        work: Any,
        outputs: Sequence[torch.Tensor],
        copies: Sequence[torch.Tensor],
        source: int = -1,
        call: agreement.Call | None = None,
        limit: timedelta = timedelta(0),
    ) -> None:
        super().__init__(outputs)
        self._source, self._call, self._limit = source, call, limit
        self._name, self._work, self._copies = name, work, list(copies)
        self._lock = threading.Lock()
        self._written = not self._copies

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait until the results are in their tensors; raise the error of the work."""
        if self._call is not None:
            try:
                self._call.wait(timeout or self._limit)
            except Exception as error:
                raise joining.failed(self._name, error) from error
        try:
            self._work.wait(timeout) if timeout else self._work.wait()
        except RuntimeError as error:
            raise joining.explained(self._name, error) from error
        with self._lock:
            if not self._written:
                write(self.outputs, self._copies)
                self._written = True
        return True

    def is_completed(self) -> bool:
        """Return whether it is over, with or without an error, and write its results."""
        if not self._work.is_completed():
            return False
        if self._work.is_success():
            self.wait()
        return True

    def is_success(self) -> bool:
        """Return whether the results are in their tensors."""
        return self.is_completed() and self._work.is_success()

    def exception(self) -> Any:
        """Return the error of the work, or None."""
        return self._work.exception()

    def source_rank(self) -> int:
        """Return the rank from which a tensor was received."""
        return self._work._source_rank() if self._source < 0 else self._source

    _source_rank = source_rank


class _Launcher:
    """The thread that runs programs, started with the first of them."""

    def __init__(self) -> None:
        self._waiting: queue.SimpleQueue[ProgramWork | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self.running: ProgramWork | None = None

    def give_up(self, error: Exception) -> Exception:
        """Run no more programs, since processes are out of step from here on; return ``error``."""
        self._error = self._error or error
        return error

    def check(self) -> None:
        """Raise if a collective has timed out before, or met another one."""
        if self._error is not None:
            raise RuntimeError(f"an earlier collective failed: {self._error}")

    def launch(self, work: ProgramWork) -> ProgramWork:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="torch_jax collectives", daemon=True
                )
                self._thread.start()
                atexit.register(self._stop)
            self._waiting.put(work)
        return work

    def _run(self) -> None:
        while (work := self._waiting.get()) is not None:
            self.running = work
            work.run()
            self.running = None
            del work

    def _stop(self) -> None:
        """End the thread without waiting long: work that waits for a peer is left alone."""
        self._waiting.put(None)
        assert self._thread is not None
        self._thread.join(SECONDS_AT_EXIT)


LAUNCHER = _Launcher()
