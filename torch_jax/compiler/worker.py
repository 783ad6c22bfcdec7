"""The thread that compiles programs needed soon, while the program goes on."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

from torch_jax._private import jax_core
from torch_jax.core import forks

_x64 = jax_core.x64_state()


class _Worker:
    """A thread that compiles by calling functions: results are ignored."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._ends = False

    def submit(self, function: Callable[..., Any], args: tuple) -> threading.Event:
        """Have ``function`` called with ``args``; the event is set when the call has ended."""
        done = threading.Event()
        with self._lock:
            if self._ends:
                done.set()
                return done
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="torch_jax compiles", daemon=True
                )
                self._thread.start()
        self._jobs.put((function, args, done))
        return done

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            function, args, done = job
            try:
                if not self._ends:
                    _x64.swap_local(True)  # this thread has no other work
                    function(*args)
            except Exception:  # an array was donated meanwhile: the first call compiles then
                pass
            finally:
                del job, function, args
                done.set()

    def stop(self) -> None:
        """Finish the compilation in progress, and start no other, when the process ends."""
        self._ends = True
        self._jobs.put(None)
        if self._thread is not None and not forks.is_lost():
            self._thread.join()

    def forget(self) -> None:
        """Start again in a forked child, which has no such thread."""
        self.__init__()  # type: ignore[misc]


WORKER = _Worker()
forks.listeners.append(WORKER.forget)
