"""Random numbers in a trace: each call draws its own, from where its generators stand then.

The key words of a generator's state at the beginning of a call are an input of the program. What
is drawn in the trace is that many draws later; seeding a generator makes its words a constant.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
import torch

from torch_jax.memory import generators


class Draws:
    """The draws of one generator in a trace, and where they count from.

    ``origin`` are the draws (mostly these) of the generator from whose state at the beginning of a
    call this one's state follows, ``None`` where it is the same at each call, having been seeded.
    """

    def __init__(self, generator: Any, tracer: Any):
        self.generator, self.tracer = generator, tracer
        self.seed, self.offset = generator.where()
        self.origin: Draws | None = self
        self.left: tuple[int, int] = (0, 0)  # how the trace leaves it

    def end(self) -> None:
        """The trace is over."""
        self.left = self.generator.where()
        self.tracer = None  # which would keep all of the trace alive

    def first_words(self) -> np.ndarray:
        """The key words of the call that was traced."""
        return generators.words(self.seed, self.offset)

    @property
    def steps(self) -> int:
        """How far a call moves the generator on, if no more happens to it."""
        return self.left[1] - self.offset if self.origin is self else 0


def begin_draws(each: list[Draws]) -> list[np.ndarray]:
    """The key words that a call begins with; the generators move on as the trace moved them."""
    before = {id(draws): draws.generator.advance(draws.steps) for draws in each}
    for draws in each:
        origin, (seed, offset) = draws.origin, draws.left
        if origin is None:
            draws.generator.put(seed, offset)
        elif origin is not draws:
            seed, start = before[id(origin)]
            draws.generator.put(seed, start + offset - origin.offset)
    return [generators.words(*before[id(draws)]) for draws in each]


def state_later(generator: Any, steps: int) -> torch.Tensor:
    """The state that a generator will have so many draws later."""
    seed, offset = generator.where()
    return generators.as_state(seed, offset + steps)


class BodyDraws:
    """The draws in a loop's body: each round goes on where the last one stopped."""

    def __init__(self, capture: Any, generator: Any):
        self._capture, self._generator = capture, generator

    def begin(self, tracer: Any) -> None:
        """Trace the body, whose key words are an input."""
        capture, generator = self._capture, self._generator
        self._outer = capture.draws.get(id(generator))
        self._before = generator._offset
        capture.draws[id(generator)] = Draws(generator, tracer)

    def end(self) -> BodyDraws:
        """The body is traced."""
        capture, generator = self._capture, self._generator
        self.steps = generator._offset - self._before
        generator._offset = self._before
        del capture.draws[id(generator)]
        if self._outer is not None:
            capture.draws[id(generator)] = self._outer
        return self

    def words(self, rounds: int) -> Any:
        """Key words of every round, ``[rounds, 4]``; the generator moves on by all of them."""
        if not self.steps:
            return jnp.zeros((rounds, 4), np.uint32)
        words = []
        for _ in range(rounds):
            words.append(self._capture.draw(self._generator))
            self._generator._offset += self.steps - 1
        return jnp.stack([jnp.asarray(w) for w in words])


def keep_cpu_state() -> Callable[[], Any]:
    """What puts the CPU's generator back to where it stands."""
    generator = torch.default_generator
    return functools.partial(generator.set_state, generator.get_state())
