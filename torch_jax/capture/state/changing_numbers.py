"""Numbers in attributes, globals, closures and dicts that change from call to call.

One that has changed once is an input of the next program: while the function is traced, a
:class:`~torch_jax.core.numbers.Number` or :class:`~torch_jax.core.numbers.Integer` stands in its
place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch_jax.capture.host.tape import Changed
from torch_jax.capture.state.places import Item, put, same
from torch_jax.core.numbers import number_of

CLASSES = (float, int)
_KINDS = ("dict", "cell", "element")


def varies(item: Item, now: Any) -> bool:
    """Whether a place holds another number than before, of one class."""
    alike = type(item.value) is type(now) and type(now) in CLASSES
    return alike and item.kind in _KINDS and not same(item.value, now)


def elements(item: Item) -> list[Item]:
    """The places in a dict of which all is guarded, with what stood there."""
    half = len(item.value) // 2
    keys, values = item.value[:half], item.value[half:]
    if not isinstance(item.owner, dict) or tuple(item.owner) != keys:
        return []
    pairs = zip(keys, values, strict=True)
    return [Item("element", item.owner, k, v, f"{item.label}[{k!r}]") for k, v in pairs]


@contextmanager
def lifted(capture: Any, items: Iterable[Item]) -> Iterator[list[tuple[Item, int]]]:
    """Context in which numbers of the trace stand in these places; its slots of the tape."""
    there = [(item, item.now()) for item in items]
    numbers = []
    for item, value in there:
        if type(value) in CLASSES:
            slot = capture.tape.record(_Read(item, type(value)), (), value)
            numbers.append((item, value, number_of(capture, slot, value)))
            put(*numbers[-1][::2])
    try:
        yield [(item, number.slot) for item, _, number in numbers]
    finally:
        for item, value, number in numbers:
            if item.now() is number:
                put(item, value)


class _Read:
    """A step of the tape that reads the number anew."""

    def __init__(self, item: Item, kind: type):
        self.item, self.kind = item, kind

    def __call__(self) -> Any:
        value = self.item.now()
        if type(value) is not self.kind:
            raise Changed(f"{self.item.label} was of class {self.kind}, now it is {value!r}")
        return value
