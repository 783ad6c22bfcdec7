"""Floats in attributes, globals and closures that change from call to call.

One that has changed once is an input of the next program: while the function is traced, a
:class:`~torch_jax.tape.Number` stands in its place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch_jax.places import Item, put, same
from torch_jax.tape import Changed, Number

_KINDS = ("dict", "cell")


def varies(item: Item, now: Any) -> bool:
    """Whether a place holds another float than before."""
    both = type(item.value) is float and type(now) is float
    return both and item.kind in _KINDS and not same(item.value, now)


@contextmanager
def lifted(capture: Any, items: Iterable[Item]) -> Iterator[None]:
    """Context in which numbers stand in these places, where they hold floats."""
    there = [(item, item.now()) for item in items]
    numbers = []
    for item, value in there:
        if type(value) is float:
            slot = capture.tape.record(_Read(item), (), value)
            numbers.append((item, value, Number(capture, slot)))
            put(*numbers[-1][::2])
    try:
        yield
    finally:
        for item, value, number in numbers:
            if item.now() is number:
                put(item, value)


class _Read:
    """A step of the tape that reads the float anew."""

    def __init__(self, item: Item):
        self.item = item

    def __call__(self) -> float:
        value = self.item.now()
        if type(value) is not float:
            raise Changed(f"{self.item.label} was a float, now it is {value!r}")
        return value
