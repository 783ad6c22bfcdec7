"""Memories lent to a program that writes its results over them.

An executable uses the memory of an array that is donated to it, and the array is gone then. So the
arrays are taken out of their storages first. Its reference count shows whether an array has other
holders by then (:func:`torch_jax.compiler.donation.copy_shared`); later readers meet a placeholder,
and wait. The program's results replace the arrays.

Between the launch and that replacement no signal may raise, or the storages would keep arrays that
are gone. Python looks for signals between calls of functions, never inside a function written in C:
so all steps that must stay together are one such call, over iterators made before.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, repeat, starmap
from operator import add, attrgetter, getitem, is_not
from typing import Any

from torch_jax.core.lent import Lent
from torch_jax.core.tracers import TracedElsewhere
from torch_jax.memory.storage import PUTTING

_ARRAY = repeat("array")
_array = attrgetter("array")
_exhaust = deque(maxlen=0).extend  # type: ignore[var-annotated]
_programs_at_work: set[object] = set()


def run(
    program: Callable[..., list],
    arguments: Callable[[], tuple],
    inputs: list[Any],
    storages: list[Any],
    places: Sequence[int],
    placeholders: Sequence[Lent],
    results: Sequence[int] | None = None,
    read: Sequence[Any] = (),
) -> list[Any]:
    """Run a program over the memories of storages, and store its results there.

    Args:
      program: the executable; it returns a list.
      arguments: returns the arguments; called when the memories have been taken.
      inputs: arrays that were read from storages. The list is their only holder meanwhile.
      storages: the storages whose memories are lent.
      places: where the memory of each is among ``inputs``.
      placeholders: the object that each holds meanwhile.
      results: for each storage, the place of its new memory in the list of the outputs and the
        inputs. None: the first outputs, in order.
      read: storages whose memories are read into ``inputs`` first, which is empty then. That saves
        a pass that compares the memories lent with those read.

    Returns:
      The outputs.

    Raises:
      TracedElsewhere: another thread has written one of the storages since it was read, or has its
        memory; nothing was done.
    """
    if not storages:
        inputs += map(_array, read)
        if _programs_at_work and Lent in map(type, inputs):
            raise TracedElsewhere
        return program(*arguments())
    outcome: list[list[Any]] = []
    after = _afterwards(outcome, inputs, results)
    before = map(inputs.__getitem__, places)  # where the program fails
    giving_back = map(setattr, storages, _ARRAY, chain(after, before))
    taking = map(setattr, storages, _ARRAY, placeholders)
    taken: list[Any] = []
    finishing = chain.from_iterable(taken)
    me = object()
    try:
        with PUTTING:
            inputs += map(_array, read)
            if _programs_at_work and Lent in map(type, inputs):
                raise TracedElsewhere
            if not read and any(
                map(is_not, map(_array, storages), map(inputs.__getitem__, places))
            ):
                raise TracedElsewhere
            _programs_at_work.add(me)
            taken += (giving_back,)
            _exhaust(taking)
        outcome.extend(starmap(program, (arguments(),)))
    finally:
        _exhaust(finishing)
        _programs_at_work.discard(me)
    return outcome[0]


def _afterwards(
    outcome: list[list[Any]], inputs: list[Any], results: Sequence[int] | None
) -> Iterator[Any]:
    """Yield the later memories of storages, once ``outcome`` has the outputs; else nothing."""
    if results is None:
        return chain.from_iterable(outcome)
    outputs_and_inputs = map(add, outcome, repeat(inputs))
    return map(getitem, chain.from_iterable(map(repeat, outputs_and_inputs)), results)
