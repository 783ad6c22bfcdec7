"""Python's garbage collector, kept quiet for a while."""

from __future__ import annotations

import gc


class no_collection:
    """Context in which the garbage collector starts no collection by itself.

    By its threshold, since functions ask more often whether it is enabled; where another thread
    does the same meanwhile, or the block sets one of its own, it stays as they leave it. What is
    made in the block and is still there after it counts for the next collection as ever.

    >>> with no_collection():
    ...     gc.get_threshold()[0]
    0
    """

    def __enter__(self) -> None:
        self._before = first, *others = gc.get_threshold()
        try:
            gc.set_threshold(0, *others)
        except BaseException:  # a signal's: the block is not entered, nor will it be left
            gc.set_threshold(first, *others)
            raise

    def __exit__(self, *_exception: object) -> None:
        if not gc.get_threshold()[0]:
            gc.set_threshold(*self._before)
