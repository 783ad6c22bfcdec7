"""Flags of checks, such as whether indices are in range, for which the host does not wait.

On an accelerator each wait would cost more than the operator. So a flag comes over while Python
goes on, and where it is false the error is raised where the host waits next, as CUDA's errors are.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import jax
import numpy as np

from torch_jax.core.absent import Absent
from torch_jax.core.node import Node

_Late = tuple[Any, str, type[Exception]]  # the flag, the message and the kind of the error

_late: deque[_Late] = deque()
_changing = threading.RLock()  # a handler of signals may wait for a value


def come_later(flag: Any, message: str, kind: type[Exception]) -> None:
    """Raise ``kind(message)`` where the host waits next, if the flag is false by then.

    Args:
      flag: a bool array, or the node of a recording that will be one. One that lies on devices of
        other processes is not asked for, since these may not wait at the same time.
      message: what is wrong where the flag is false.
      kind: of the error.
    """
    if isinstance(flag, jax.Array):
        if not flag.is_fully_addressable:
            return
        flag.copy_to_host_async()
    with _changing:
        _late.append((flag, message, kind))
        while _late and _is_known(_late[0][0]) and _holds(_late[0][0]):
            _late.popleft()


def raise_failed() -> None:
    """Raise the error of the first flag that is false, and forget all whose programs have run."""
    if not _late:
        return
    with _changing:
        known: list[_Late] = []
        waiting: list[_Late] = []
        for one in _late:
            (waiting if _array(one[0]) is None else known).append(one)
        _late.clear()
        _late.extend(waiting)
    for flag, message, kind in known:
        if not _holds(flag):
            raise kind(f"{message} (in an earlier call; check_indices='always' raises at once)")


def _array(flag: Any) -> Any:
    """Return the array; None where its program has yet to run."""
    if not isinstance(flag, Node):
        return flag
    return flag.array if flag.recording is None else None


def _is_known(flag: Any) -> bool:
    array = _array(flag)
    return array is not None and (type(array) is Absent or array.is_ready())


def _holds(flag: Any) -> bool:
    array = _array(flag)
    try:
        return type(array) is Absent or bool(np.asarray(jax.block_until_ready(array)))
    except RuntimeError:  # its program has failed, which waiting for a result of it says
        return True
