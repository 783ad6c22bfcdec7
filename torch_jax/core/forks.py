"""Forked processes: a child of a process that has used the device cannot use it.

JAX's threads do not come along, so that a wait for one of them would never end. The child gets the
error that ``torch.cuda`` raises there. Hot operators check nothing: the executables they would run
are taken away in the child (:data:`listeners`), and other work passes :func:`refuse`.
"""

from __future__ import annotations

import os
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

from torch_jax._private import jax_core

listeners: list[Callable[[], None]] = []  # called in a child that has lost the device

# Held while the program of a pure function is called. Read it as ``forks.RUNNING``: in a
# forked child that has lost the device another object replaces it, and a call raises at once.
RUNNING: Any = threading.RLock()

_in_use = False
_lost = False
_held: Any = None


def note_use() -> None:
    """Note that the device is used: children forked from here on will not have it."""
    global _in_use
    _in_use = True
    # JAX warns of a likely deadlock at each fork, so at each data loader that has workers
    warnings.filterwarnings("ignore", r"os\.fork\(\) was called\..* JAX", RuntimeWarning)


def is_lost() -> bool:
    """Return whether this process was forked from one that had used the device, or JAX."""
    return _lost


def refuse(*_ignored: Any) -> None:
    """Raise in a process that has lost the device."""
    if _lost:
        raise RuntimeError(
            "Cannot re-initialize jax in forked subprocess. To use jax with multiprocessing, you "
            f"must use the 'spawn' start method{_of_loaders()}"
        )


def _of_loaders() -> str:
    """Return advice for a worker of a data loader; an empty text in other processes."""
    worker = sys.modules.get("torch.utils.data._utils.worker")
    if worker is None or worker.get_worker_info() is None:
        return ""
    return (
        ". A data loader's worker is such a process: let the data set return CPU tensors "
        "(device='cpu'), and move each batch in the loop, with batch.to('jax')"
    )


class Refusal:
    """A context that cannot be entered, in place of a lock that a thread of the parent may hold."""

    def __enter__(self) -> None:
        refuse()

    def __exit__(self, *_exception: object) -> None:
        pass


def _hold() -> None:
    """Hold JAX's objects so that the child never frees them: that would wait too, or abort."""
    global _held
    _held = jax_core.what_jax_holds()


def _let_go() -> None:
    global _held
    _held = None


def _lose() -> None:
    global _lost, RUNNING
    _lost = _lost or _in_use or _held is not None
    if _lost:
        RUNNING = Refusal()
        jax_core.leave_jax_behind(_held)
        for listener in listeners:
            listener()


os.register_at_fork(before=_hold, after_in_parent=_let_go, after_in_child=_lose)
