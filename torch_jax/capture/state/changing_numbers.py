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
from torch_jax.capture.state.places import Place, same
from torch_jax.core.numbers import number_of

CLASSES = (float, int)


def varies(place: Place, now: Any) -> bool:
    """Whether a place holds another number than before, of one class."""
    alike = type(place.value) is type(now) and type(now) in CLASSES
    return alike and place.can_vary and not same(place.value, now)


@contextmanager
def lifted(capture: Any, places: Iterable[Place]) -> Iterator[list[tuple[Place, int]]]:
    """Context in which numbers of the trace stand in these places; its slots of the tape."""
    there = [(place, place.now()) for place in places]
    numbers = []
    for place, value in there:
        if type(value) in CLASSES:
            slot = capture.tape.record(_Read(place, type(value)), (), value)
            number = number_of(capture, slot, value)
            numbers.append((place, value, number))
            place.put(number)
    try:
        yield [(place, number.slot) for place, _, number in numbers]
    finally:
        for place, value, number in numbers:
            if place.now() is number:
                place.put(value)


class _Read:
    """A step of the tape that reads the number anew."""

    def __init__(self, place: Place, kind: type):
        self.place, self.kind = place, kind

    def __call__(self) -> Any:
        value = self.place.now()
        if type(value) is not self.kind:
            raise Changed(f"{self.place.label} was of class {self.kind}, now it is {value!r}")
        return value
