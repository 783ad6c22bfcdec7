"""What crosses between host and device: bytes either way, and how long values were waited for."""

from __future__ import annotations

import threading


class Traffic:
    """Sums over all threads.

    >>> traffic = Traffic()
    >>> traffic.to_host(8, 0.5)
    >>> traffic.bytes_to_host, traffic.seconds
    (8, 0.5)
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        self.bytes_to_device = self.bytes_to_host = 0
        self.seconds = 0.0

    def to_device(self, count: int) -> None:
        """So many bytes were copied to the device."""
        with self._lock:
            self.bytes_to_device += count

    def to_host(self, count: int, seconds: float) -> None:
        """So many bytes were looked at by the host, which waited so long for them."""
        with self._lock:
            self.bytes_to_host += count
            self.seconds += seconds


TRAFFIC = Traffic()
