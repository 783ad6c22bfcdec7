"""Flags of checks, such as whether indices are in range, for which the host does not wait.

On an accelerator each wait would cost more than the operator, and to bring each flag over as much.
So the device keeps them, where the host waits next they come over as one, and the error is raised
there, as CUDA's errors are.
"""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from collections.abc import Callable
from itertools import chain
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from torch_jax import config, target
from torch_jax._private import jax_core
from torch_jax.budgets import FLAGS_ASKED_TOGETHER
from torch_jax.core.absent import Absent
from torch_jax.core.active import ACTIVE
from torch_jax.core.node import Node


class _Late(NamedTuple):
    flag: Any
    message: str  # what is wrong where the flag is false
    kind: type[Exception]


_late: list[_Late] = []
_asked: deque[tuple[Any, list[_Late]]] = deque()  # whether all of some are true
_changing = threading.RLock()  # a handler of signals may wait for a value


def come_later(flag: Any, message: str, kind: type[Exception]) -> None:
    """Raise ``kind(message)`` where the host waits next, if the flag, array or node, is false."""
    if isinstance(flag, jax.Array) and not flag.is_fully_addressable:
        return  # the processes of its devices may not wait at the same time
    with _changing:
        _late.append(_Late(flag, message, kind))
        if len(_late) >= FLAGS_ASKED_TOGETHER:  # a loop that never waits would keep them all
            ask()
            while _asked and _asked[0][0].is_ready() and _holds(_asked[0][0]):
                _asked.popleft()


def later() -> Callable[[Any, str, type[Exception]], None] | None:
    """Return what raises the error of a flag later; None where an operator raises it at once."""
    recorder, on_cpu = ACTIVE.recorder, target.on_cpu()
    takes = recorder is not None and recorder.listener.takes_checks
    is_late = config.get("check_indices") == "auto" and not (recorder is None and on_cpu)
    if not (takes or is_late):
        return None
    return come_later if recorder is None else recorder.check_later


def ask() -> None:
    """Let the flags come over whose programs have been launched, without waiting for them."""
    if not _late:
        return
    with _changing:
        waiting: list[_Late] = []
        together: dict[Any, list[_Late]] = defaultdict(list)
        for one in _late:
            flag = one.flag
            if isinstance(flag, Node) and flag.recording is not None:  # its program has yet to run
                waiting.append(one)
                continue
            array = flag.array if isinstance(flag, Node) else flag
            if type(array) is not Absent:
                together[array.sharding].append(one._replace(flag=array))
        _late[:] = waiting
        for some in together.values():
            flag = _all([one.flag for one in some])
            flag.copy_to_host_async()
            _asked.append((flag, some))


def raise_failed() -> None:
    """Raise the error of the first flag that is false, and forget all whose programs have run."""
    ask()
    if not _asked:
        return
    with _changing:
        asked = list(_asked)
        _asked.clear()
    failed = chain.from_iterable(some for flag, some in asked if not _holds(flag))
    for flag, message, kind in failed:
        if not _holds(flag, if_failed=True):  # waiting for its other results says so
            raise kind(f"{message} (in an earlier call; check_indices='always' raises at once)")


def _all(flags: list[jax.Array]) -> jax.Array:
    """Return whether all are true, by one of few programs: for 2, 4, 8 … of them."""
    if len(flags) == 1:
        return flags[0]
    missing = (1 << (len(flags) - 1).bit_length()) - len(flags)
    with jax_core.outside_of_traces():
        return _are_true(flags + flags[:1] * missing)


@jax.jit
def _are_true(flags: list[jax.Array]) -> jax.Array:
    return jnp.stack(flags).all()


def _holds(flag: jax.Array, if_failed: bool = False) -> bool:
    """Return the flag's value, or ``if_failed`` where the program that makes it has failed."""
    try:
        return bool(np.asarray(jax.block_until_ready(flag)))
    except RuntimeError:
        return if_failed
