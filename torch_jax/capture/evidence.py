"""The proof of a compiled function, checked while the program runs.

A function whose Python is skipped is recorded for real now and then: at the 2nd, 4th, 8th … call
and then at every n-th (setting ``jit_check_every``). That is the call itself, nothing is done
twice. What it recorded is held against what was recorded before the Python was skipped: the same
operators over the same tensors, with the same numbers where the program has constants. Where they
differ Python matters in a way that no guard saw, and the function is recorded from then on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from torch_jax import config
from torch_jax.capture.replay import Replay
from torch_jax.memory.storage import memory_in
from torch_jax.recorded.path import Given, Moving, Number, State, Words

_SMALL = 64  # elements of a new array whose values are compared


class Graph(NamedTuple):
    """One graph that a call has recorded.

    Attributes:
      state: the operators.
      numbers: Python's, in order.
      arrays: for each array that the graph was given what is known of it.
    """

    state: State
    numbers: tuple[Any, ...]
    arrays: tuple[Any, ...]


class Observation:
    """What one call records; the recorder tells it of each graph that is run."""

    def __init__(self, known: dict[int, Any] | None = None, is_any: bool = False):
        """What to tell of arrays.

        Args:
          known: what is known of them, by their id; None where only operators matter.
          is_any: whether others may have any value, since the program reads the host's.
        """
        self._known: Any = known
        self._is_any = is_any
        self.graphs: list[Graph] = []

    def __call__(self, state: State, numbers: list[Any], arrays: list[Any]) -> None:
        known: tuple[Any, ...] = ()
        if self._known is not None:
            known = tuple(self._known.get(id(a)) or self._value(a) for a in arrays)
        self.graphs.append(Graph(state, tuple(numbers), known))

    def _value(self, array: Any) -> Any:
        """What is known of an array that the call has made: its values, where they are few."""
        if self._is_any or array.size > _SMALL:
            return "new"
        return np.asarray(array).tobytes()


def known_arrays(replay: Replay, leaves: Sequence[Any]) -> dict[int, Any]:
    """The arrays that a compiled call would read, by their id: which tensor each belongs to."""
    memories = map(memory_in, replay.storages(leaves))
    return {id(memory): ("tensor", at) for at, memory in enumerate(memories)}


class Evidence:
    """What was recorded for one trace, and when it is to be compared again."""

    def __init__(self, states: list[State] | None):
        """``states``: of the last call that was recorded before the trace.

        None where an optimizer steps: its counts stand on the device since, so that the operators
        are others. The first comparison then says what they are.
        """
        self._states = states
        self._graphs: list[Graph] | None = None
        self._calls, self._due = 1, 2

    def is_due(self) -> bool:
        """Whether the next call is to be recorded; asked once for each."""
        every = config.get("jit_check_every")
        if not every:
            return False
        self._calls += 1
        if self._calls < self._due:
            return False
        self._due = min(2 * self._due, self._due + every)
        return True

    def difference(self, graphs: list[Graph], has_numbers: bool) -> str | None:
        """How a call differs from those before, None where it does not.

        ``has_numbers``: whether numbers are inputs of the compiled program, and may differ.
        """
        states = [graph.state for graph in graphs]
        if self._states is None:
            self._states = states
        if states != self._states:
            return _other_operator(self._states, states)
        old, self._graphs = self._graphs, graphs
        if old is None:
            return None
        for before, now in zip(old, graphs, strict=True):
            found = _other_array(before, now) or (
                None if has_numbers else _other_number(before, now)
            )
            if found is not None:
                return found
        return None


def _other_operator(old: list[State], new: list[State]) -> str:
    steps = [step for state in old for step in state.steps()]
    others = [step for state in new for step in state.steps()]
    for was, now in zip(steps, others, strict=False):
        if was is not now:
            return (
                f"it called {now.name} at {now.line}, where it had called {was.name} at {was.line}"
            )
    return f"it called {len(others)} operators, where it had called {len(steps)}"


def _other_array(old: Graph, new: Graph) -> str | None:
    for at, (was, now) in enumerate(zip(old.arrays, new.arrays, strict=True)):
        if was != now:
            return f"{_reader(new.state, at)} read another tensor than before, or other values"
    return None


def _other_number(old: Graph, new: Graph) -> str | None:
    sites = _sites(new.state)
    for step, was, now in zip(sites, old.numbers, new.numbers, strict=True):
        if step is not None and repr(was) != repr(now):
            return f"{step.name} at {step.line} was given {now!r}, where it had been given {was!r}"
    return None


def _sites(state: State) -> list[Any]:
    """For each number of a graph the operator that takes it; None for those of random draws."""
    found: list[Any] = []
    for step in state.steps():
        for source in step.sources:
            if isinstance(source, Words):
                found += [None] * 4
            elif isinstance(source, Moving):
                found += [step] * source.length
            elif isinstance(source, Number):
                found.append(step)
    return found


def _reader(state: State, at: int) -> str:
    for step in state.steps():
        if Given(at) in step.sources:
            return f"{step.name} at {step.line}"
    return "no operator"
