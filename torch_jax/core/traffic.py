"""Bytes copied between host and device, either way, and seconds of waiting for values."""

from __future__ import annotations

import threading

from torch_jax.budgets import ENTRIES_REMEMBERED
from torch_jax.core import costs


class Traffic:
    """Sums over all threads.

    >>> traffic = Traffic()
    >>> traffic.to_device(4)
    >>> traffic.to_host(8, 0.5)
    >>> traffic.sums()
    (4, 8, 0.5)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: tuple[int, int, float] = (0, 0, 0.0)
        # Not added up yet: to append is one call of C, which costs a copy less than a lock does.
        self._copies: list[tuple[int, int, float]] = []

    def clear(self) -> None:
        """Set all sums to zero."""
        self.sums()
        with self._lock:
            self._sums = (0, 0, 0.0)

    def to_device(self, count: int) -> None:
        """Count bytes that were copied to the device."""
        self._add((count, 0, 0.0))
        if costs.LISTENING.listener is not None:
            costs.note("to_device", "", 0.0, count)

    def to_host(self, count: int, seconds: float) -> None:
        """Count bytes that the host has read, and the seconds that it waited for them."""
        self._add((0, count, seconds))
        if costs.LISTENING.listener is not None:
            costs.note("to_host", "", seconds, count)

    def _add(self, copy: tuple[int, int, float]) -> None:
        self._copies.append(copy)
        if len(self._copies) > ENTRIES_REMEMBERED:
            self.sums()

    def sums(self) -> tuple[int, int, float]:
        """Return bytes to the device, bytes to the host, and seconds of waiting."""
        with self._lock:
            to_device, to_host, seconds = self._sums
            for _ in range(len(self._copies)):
                copy = self._copies.pop()
                to_device, to_host = to_device + copy[0], to_host + copy[1]
                seconds += copy[2]
            self._sums = to_device, to_host, seconds
            return self._sums


TRAFFIC = Traffic()
