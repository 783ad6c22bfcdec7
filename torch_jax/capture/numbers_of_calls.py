"""The numbers that a program is given at each call."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np

from torch_jax.capture.draws import Later, OnTape
from torch_jax.capture.observer import Graph, Observer
from torch_jax.core.numbers import GivenNumber
from torch_jax.memory import generators
from torch_jax.recorded.path import Moving, Number, Words


class Numbers:
    """The numbers that a program is given: constants, numbers of the tape, and key words."""

    def __init__(self, observer: Observer, graph: Graph):
        floats: list[float] = []
        integers: list[int] = []
        self.slots: list[tuple[int, int]] = []  # of floats: place, and slot of the tape
        self._words: list[tuple[int, Any]] = []  # of four integers: first place, and which draw
        rest = iter(graph.numbers)
        sources = (source for step in graph.state.steps() for source in step.sources)
        for source in sources:
            if isinstance(source, Words):
                words = tuple(islice(rest, 4))
                drawn = observer.draws.source(words)
                if isinstance(drawn, Later | OnTape):
                    self._words.append((len(integers), drawn))
                integers += words
            elif isinstance(source, Moving):
                integers += islice(rest, source.length)
            elif isinstance(source, Number):
                number = next(rest)
                if isinstance(number, GivenNumber):
                    self.slots.append((len(floats), number.slot))
                (floats if isinstance(number, float) else integers).append(number)
        self._floats, self._integers = np.array(floats, np.float64), np.array(integers, np.int64)

    def of_call(self, env: list[Any], drawn_from: list[tuple[int, int]]) -> tuple[Any, Any]:
        """Return the vectors of a call; ``drawn_from`` are seeds and offsets of its generators."""
        floats, integers = self._floats, self._integers
        if self.slots:
            floats = floats.copy()
            for at, slot in self.slots:
                floats[at] = env[slot]
        if self._words:
            integers = integers.copy()
            for at, drawn in self._words:
                if isinstance(drawn, OnTape):
                    integers[at : at + 4] = env[drawn.slot]
                else:
                    seed, offset = drawn_from[drawn.at]
                    integers[at : at + 4] = generators.words(seed, offset + drawn.steps)
        return floats, integers
