"""One bound over the compiled entries of all kernels, which count their calls.

All calls are counted. When there are too many entries, half of them are dropped: first those not
called since the last drop. So are they when the process has few memory maps left: XLA's programs
for the CPU take up to fifty each, and a process that has none for the next ends.
"""

from __future__ import annotations

import gc
import weakref
from typing import Any

from torch_jax.budgets import ENTRIES_BETWEEN_LOOKS_AT_MAPS, SHARE_OF_MEMORY_MAPS

UNCOMPILED: dict[str, list[int]] = {}  # of operators, the number of calls that compile nothing
_kernels: weakref.WeakSet[Any] = weakref.WeakSet()  # the kernels that have compiled something
_count = 0
_gone = 0  # calls of entries that were dropped
_before: dict[int, int] = {}  # calls of those that stayed, by their numbers


def calls() -> int:
    """Return the number of calls of operators so far: eager, recorded, or traced."""
    compiled = (e.uses for kernel in list(_kernels) for e in list(kernel.cache.values()))
    return _gone + sum(compiled) + sum(uses for (uses,) in list(UNCOMPILED.values()))


def names() -> list[str]:
    """Return the operators that have entries or were called without, by name."""
    called = {name for name, (uses,) in list(UNCOMPILED.items()) if uses}
    return sorted(called | {kernel.op.name() for kernel in list(_kernels) if kernel.cache})


def make_room(kernel: Any, most: int) -> None:
    """Drop entries if one more, which a kernel is about to make, would be too many."""
    global _count
    _kernels.add(kernel)
    is_time = _count % ENTRIES_BETWEEN_LOOKS_AT_MAPS == ENTRIES_BETWEEN_LOOKS_AT_MAPS - 1
    is_crowded = is_time and _share_of_maps() > SHARE_OF_MEMORY_MAPS
    if is_crowded or _count >= most:
        _count = _drop_idle(list(_kernels), min(_count, most) // 2)
    if is_crowded:
        gc.collect()  # an entry is part of circles: its program would stay for a while
    _count += 1


def _share_of_maps() -> float:
    """Return the part of its memory maps that the process has; 0 where the system does not say."""
    try:
        with open("/proc/self/maps", "rb") as maps, open("/proc/sys/vm/max_map_count") as most:
            return sum(1 for _ in maps) / int(most.read())
    except OSError:
        return 0.0


def drop(kernel: Any, key: tuple) -> None:
    """Drop an entry; its calls still count."""
    global _gone
    entry = kernel.cache.pop(key, None)
    _gone += entry.uses if entry is not None else 0


def _drop_idle(kernels: list[Any], staying: int) -> int:
    """Drop entries until ``staying`` are left; return how many there are then.

    First go those not called since the last drop, then those with the fewest calls, as in a loop
    over new shapes; of two alike the older one.
    """
    entries = sorted(
        (entry.uses > _before.get(entry.serial, 0), entry.uses, entry.serial, kernel, key)
        for kernel in kernels
        for key, entry in list(kernel.cache.items())
    )
    gone = max(0, len(entries) - staying)  # some may have been dropped one by one before
    for *_, kernel, key in entries[:gone]:
        drop(kernel, key)
    _before.clear()
    _before.update((serial, uses) for _, uses, serial, *_ in entries[gone:])
    return len(entries) - gone
