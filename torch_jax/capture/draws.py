"""The numbers of a program at each call; random ones are drawn on from the call's generators.

An observed call notes the offset of each draw, counted from its generator's offset at the beginning
of the call. A later call counts from the generator's offset by then. A generator that the function
seeds is the same at each call from there on.
"""

from __future__ import annotations

from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import torch

from torch_jax.core.numbers import GivenNumber
from torch_jax.memory import generators
from torch_jax.recorded.path import State, Words, numbers_of
from torch_jax.recorded.recorder import by_kind


class Later(NamedTuple):
    """The key words of a draw, so many steps after where a call finds its generator."""

    at: int  # the generator, by its place among those that are drawn from
    steps: int  # how many draws come before this one in a call


class _Drawn:
    """One generator: where the call finds it, and how it leaves it."""

    def __init__(self, generator: Any, at: int, begin: tuple[int, int]):
        self.generator, self.at = generator, at
        self.begin = self.end = begin  # seed and offset
        self.is_fixed = False  # whether it is the same at each call by now

    def move_on(self) -> tuple[int, int]:
        """Leave the generator as the call did; return its seed and offset of before."""
        if not self.is_fixed:
            return self.generator.advance(self.end[1] - self.begin[1])
        before = self.generator.where()
        self.generator.put(*self.end)
        return before


class Draws:
    """The draws of one observed call."""

    def __init__(self, observer: Any) -> None:
        self._observer = observer
        self._generators: dict[int, _Drawn] = {}
        self._sources: dict[bytes, Later] = {}  # of key words
        # states that were given out, and by which generator: whether each is fixed
        self._states: dict[tuple[int, bytes], bool] = {}

    def _of(self, generator: Any, drawn: int = 0) -> _Drawn:
        """Return a generator that the call draws from; it has ``drawn`` so often if it is new."""
        seed, offset = generator.where()
        new = _Drawn(generator, len(self._generators), (seed, offset - drawn))
        return self._generators.setdefault(id(generator), new)

    def drew(self, generator: Any, words: np.ndarray) -> None:
        """Note the key words that a generator has just given for one operator."""
        seed, offset = generator.where()
        drawn = self._of(generator, drawn=1)
        if not drawn.is_fixed and seed == drawn.begin[0]:
            self._sources[words.tobytes()] = Later(drawn.at, offset - 1 - drawn.begin[1])

    def seeded(self, generator: Any) -> None:
        self._of(generator).is_fixed = True

    def looked_at_seed(self, generator: Any) -> None:
        """Note that the function reads a seed as a number."""
        if not self._of(generator).is_fixed:
            self._observer.refuse("it reads the seed of a generator")

    def gives_state(self, generator: Any, state: torch.Tensor) -> None:
        """Note that the function keeps a state, to go back to it."""
        self._states[id(generator), _bytes_of(state)] = self._of(generator).is_fixed
        self._observer.host.note_made(state)

    def put_to(self, generator: Any, state: torch.Tensor) -> None:
        """Note that a generator goes to a state, which it had in this call."""
        is_fixed = self._states.get((id(generator), _bytes_of(state)))
        if is_fixed is None:
            self._observer.refuse("a generator takes over the state of another, or an older one")
        self._of(generator).is_fixed = is_fixed is not False

    def source(self, words: tuple[int, ...]) -> Any:
        """Return where a later call finds these key words; None where they are fixed."""
        return self._sources.get(np.array(words, np.uint32).tobytes())

    def undo(self) -> None:
        """Put each generator back to where the call found it."""
        for drawn in self._generators.values():
            drawn.generator.put(*drawn.begin)

    def end(self) -> list[_Drawn]:
        """Return the generators, each with how the call leaves it."""
        for drawn in self._generators.values():
            drawn.end = drawn.generator.where()
        return list(self._generators.values())


def _bytes_of(state: torch.Tensor) -> bytes:
    return state.contiguous().numpy().tobytes()


class Numbers:
    """The numbers that a program is given: constants, numbers of the tape, and key words."""

    def __init__(self, draws: Draws, state: State, numbers: list[Any]):
        """Take the draws of the observed call, a graph, and Python's numbers in it."""
        floats, integers = by_kind(numbers)
        self._floats, self._integers = np.array(floats, np.float64), np.array(integers, np.int64)
        # of floats: place, and slot of the tape
        self.slots = [(at, n.slot) for at, n in enumerate(floats) if isinstance(n, GivenNumber)]
        self._words: list[tuple[int, Later]] = []  # of four integers: first place, and which draw
        first, rest = 0, iter(numbers)
        for source in chain.from_iterable(step.sources for step in state.steps()):
            given = numbers_of(source, rest)
            drawn = draws.source(given) if isinstance(source, Words) else None
            if drawn is not None:
                self._words.append((first, drawn))
            first += sum(not isinstance(number, float) for number in given)

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
                seed, offset = drawn_from[drawn.at]
                integers[at : at + 4] = generators.words(seed, offset + drawn.steps)
        return floats, integers
