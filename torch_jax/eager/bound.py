"""One bound over the compiled entries of all kernels: those not called for the longest time go.

A hot call looks its code up in a dict and leaves no trace of that. So it is found out by asking
again: when there are too many, entries that were not called since the last time are dropped, and
the others must come by the slow path once more, which marks them.
"""

from __future__ import annotations

import weakref
from typing import Any

_kernels: weakref.WeakSet[Any] = weakref.WeakSet()  # those that have compiled something
_count = 0


def added(kernel: Any, most: int) -> None:
    """A kernel has a new entry; drops entries if there are more than ``most``."""
    global _count
    _kernels.add(kernel)
    _count += 1
    if _count > most:
        _count = _drop(list(_kernels), most)


def forget(hot: dict[tuple, Any], key: tuple) -> None:
    """Drop what a hot call looks up, so that the call comes by the slow path once more."""
    hot.pop(key, None)


def _drop(kernels: list[Any], most: int) -> int:
    """Drop what was not called since the last time, at least a quarter; returns how many stay."""
    entries = [(k, key, e) for k in kernels for key, e in list(k.cache.items())]
    enough = max(1, most // 4)
    gone: set[Any] = set()
    for is_spare in (_is_idle, _is_single, _is_any):
        spare = [entry for _, _, entry in entries if is_spare(entry) and entry not in gone]
        gone.update(spare if is_spare is not _is_any else spare[::2])
        if len(entries) - len(gone) <= most - enough:
            break
    for kernel, key, entry in entries:
        if entry in gone:
            kernel.cache.pop(key, None)
        entry.uses, entry.fresh = 0, False
    for kernel in kernels:
        kernel.hot.clear()
    return len(entries) - len(gone)


def _is_idle(entry: Any) -> bool:
    return entry.uses == 0


def _is_single(entry: Any) -> bool:
    """Compiled for one call, as in a loop over ever new shapes."""
    return entry.fresh and entry.uses == 1


def _is_any(entry: Any) -> bool:
    return True
