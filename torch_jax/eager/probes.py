"""Numbers that change at each call: does an operator take every float?

A learning rate that decays, or Adam's corrections, would call the CPU's kernel at each step. Once
two have passed, the kernel is called with floats of all magnitudes and signs. One that refuses none
of them checks no float, up to the largest that its dtypes hold.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from torch_jax.eager import twins
from torch_jax.memory.storage import tensors_in

_MAGNITUDES = (0.0, 1e-30, 0.25, 0.5, 1.0, 1.5, 2.0, 100.0)


class Bounds:
    """The largest float that an operator takes, by its other arguments."""

    def __init__(self, op: Any):
        self.op = op
        self._known: dict[Any, float] = {}  # -1: one float has passed

    def hold(self, kind: Any, values: Iterable[Any]) -> bool:
        """Return whether floats of a call of this kind need no check."""
        bound = self._known.get(kind, 0.0)
        return bound > 0 and all(-bound < x < bound for x in _floats(values))

    def passed(self, kind: Any, given: dict[str, Any]) -> None:
        """Note that a call of this kind was checked, and passed."""
        if self._known.get(kind, -1.0) < 0 and any(True for _ in _floats(given.values())):
            self._known[kind] = self._largest(given) if kind in self._known else -1.0

    def _largest(self, given: dict[str, Any]) -> float:
        """Return the bound, 0 where the kernel refuses some float, or may."""
        dtypes = {tensor.dtype for tensor in tensors_in(list(given.values()))}
        if not dtypes or not all(dtype.is_floating_point for dtype in dtypes):
            return 0.0
        bound = min(torch.finfo(dtype).max for dtype in dtypes) / 2
        floats = [name for name, value in given.items() if any(True for _ in _floats([value]))]
        for names in (floats, *([name] for name in floats)):
            for value in (*_MAGNITUDES, bound):
                for number in (value, -value):
                    other = {name: _instead(given[name], number) for name in names}
                    named = twins.twins(self.op, given | other, twins.small)
                    if twins.refusal(self.op, named) is not None:
                        return 0.0
        return bound


def _floats(values: Iterable[Any]) -> Iterator[float]:
    for value in values:
        if type(value) is float:
            yield value
        elif isinstance(value, list | tuple) and value and not isinstance(value[0], torch.Tensor):
            yield from _floats(value)


def _instead(value: Any, number: float) -> Any:
    """Return a value with a number in place of each of its floats."""
    if isinstance(value, list | tuple):
        return [_instead(one, number) for one in value]
    return number if type(value) is float else value


def kind_of(known: Any) -> Any:
    """Return the key of a call with its floats left out."""
    if type(known) is tuple:
        return tuple(map(kind_of, known))
    return float if type(known) is float else known
