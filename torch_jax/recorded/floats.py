"""The floats of a graph, of which a program takes equal ones once.

Layers of one kind give an operator the same number, such as the epsilon of a norm. As inputs of
their own these numbers would make the kernels of each layer differ, and XLA would compile each: a
training step of GPT-2 takes a GPU's compiler twice as long.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from torch_jax.core.numbers import GivenNumber
from torch_jax.recorded.path import Number, Step


class Floats:
    """The places of a graph's floats among those that its program takes."""

    def __init__(self, steps: Sequence[Step], floats: Sequence[float] | None):
        """Take a graph, and its floats in the run that the program is made for.

        Equal ones of one operand of an operator share a place, but for numbers of optimizers, which
        change while Python does not run. Without ``floats`` each has its own.
        """
        self.is_apart = floats is None
        # for each float of the graph the operator that takes it, and as which operand
        keys: list[Any] = [
            (step.entry.serial, at)
            for step in steps
            for at, source in enumerate(step.sources)
            if isinstance(source, Number) and source.kind is float
        ]
        if floats is None:
            keys = list(range(len(keys)))
        else:
            bits = np.array(floats, np.float64).view(np.int64).tolist()
            for at, number in enumerate(floats):
                keys[at] = at if type(number) is GivenNumber else (*keys[at], bits[at])
        first: dict[Any, int] = {}
        for at, key in enumerate(keys):
            first.setdefault(key, at)
        place_of = {key: place for place, key in enumerate(first)}
        self.places = [place_of[key] for key in keys]
        self._first = np.array(list(first.values()), int)
        times = Counter(keys)
        self._sharing = [at for at, key in enumerate(keys) if times[key] > 1]
        self.shared = sorted({self.places[at] for at in self._sharing})

    def taken(self, floats: Any) -> Any:
        """Return the floats that the program takes, as a vector of float64."""
        every = np.asarray(floats, np.float64)
        return every[self._first] if self._sharing else every

    def fit(self, floats: Sequence[float]) -> bool:
        """Return whether those that share a place are equal to the bit, and of no optimizer."""
        if not self._sharing:
            return True
        every = np.asarray(floats, np.float64)
        are_equal = every[self._first][self.places].tobytes() == every.tobytes()
        return are_equal and not any(type(floats[at]) is GivenNumber for at in self._sharing)
