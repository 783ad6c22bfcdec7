"""Python's garbage collector, kept quiet for a while."""

from __future__ import annotations

import gc


class no_collection:
    """Context in which the garbage collector starts no collection by itself.

    It sets the first threshold to 0, since functions ask more often whether the collector is
    enabled. A threshold that another thread or the block sets meanwhile stays. Objects made in the
    block that live on count for the next collection.

    >>> with no_collection():
    ...     gc.get_threshold()[0]
    0
    """

    def __enter__(self) -> None:
        self._before = first, *others = gc.get_threshold()
        try:
            gc.set_threshold(0, *others)
        except BaseException:  # a signal's: the block is not entered, and will not be left
            gc.set_threshold(first, *others)
            raise

    def __exit__(self, *_exception: object) -> None:
        if not gc.get_threshold()[0]:
            gc.set_threshold(*self._before)
