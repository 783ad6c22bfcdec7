"""The end of the process: daemon threads stop at their next operator, safely.

Python ends daemon threads by unwinding their stacks when they next ask for its lock. In the middle
of an operator that is in C++, which aborts the process (on the CPU's device, too). So when Python
begins to end, other threads that compute are stopped at their next operator.
"""

from __future__ import annotations

import atexit
import functools
import sys
import threading
import time
from typing import Any

from torch_jax.budgets import SECONDS_AT_EXIT, SECONDS_OF_IMPORTS_AT_EXIT
from torch_jax.core import forks, waking
from torch_jax.core.user_code import OWN

_for_ever = threading.Lock()


def install() -> None:
    """Register the functions of the end: when the device is named, and when JAX is imported.

    A daemon thread may be about to import JAX when the process ends. JAX registers its own
    functions then, and Python calls such functions in reverse order.
    """
    atexit.register(_stop_daemons)


@functools.cache  # once
def _stop_daemons() -> None:
    """Let other threads finish the operator that they are in, and start no other."""
    if "torch_jax.compiler.worker" in sys.modules and not forks.is_lost():
        sys.modules["torch_jax.compiler.worker"].WORKER.stop()
    here = threading.current_thread()
    daemons = {t.ident for t in threading.enumerate() if t.daemon and t is not here}
    if not daemons or forks.is_lost():  # a child that has lost the device runs no operator
        return
    # kept: a thread that would wake the device stops here
    if not waking.LOCK.acquire(timeout=SECONDS_OF_IMPORTS_AT_EXIT):
        return
    if waking.is_awake():
        _stop_at_operators(here)
    _wait_for(daemons)


def _stop_at_operators(here: threading.Thread) -> None:
    from torch_jax.core.x64 import before_each
    from torch_jax.memory import shared

    # a daemon that stops must not hold the lock of compiled functions: this thread may call one
    forks.RUNNING.acquire(timeout=SECONDS_AT_EXIT)
    _for_ever.acquire()
    before_each(lambda: None if threading.current_thread() is here else _stop())
    # PyTorch's kernels bypass x64.__enter__: none is called from now on
    shared.SETTING.by_torch = False


def _wait_for(daemons: set[int | None]) -> None:
    """Wait until these threads have stopped, or compute nothing of ours."""
    deadline = time.monotonic() + SECONDS_AT_EXIT
    quiet = 0
    while quiet < 5 and time.monotonic() < deadline:
        time.sleep(0.002)
        frames = sys._current_frames()
        busy = any(_is_busy(frames.get(ident)) for ident in daemons if ident is not None)
        quiet = 0 if busy else quiet + 1


def _stop() -> None:
    _for_ever.acquire()


def _is_busy(frame: Any) -> bool:
    """Return whether a thread is in one of our operators, and not stopped there."""
    ours = False
    while frame is not None:
        if frame.f_code in (_stop.__code__, waking.wake.__code__):
            return False
        ours = ours or frame.f_code.co_filename.startswith(OWN)
        frame = frame.f_back
    return ours
