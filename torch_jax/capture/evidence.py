"""The proof of a compiled function, checked while the program runs.

A function whose Python is skipped is recorded for real now and then: at the 2nd, 4th, 8th … call
and then at every n-th (setting ``jit_check_every``). That is the call itself, nothing is done
twice. What it recorded is held against what was recorded before the Python was skipped: the same
operators over the same tensors, with the same numbers where the program has constants. Where they
differ Python matters in a way that no guard saw, and the function is recorded from then on.
"""

from __future__ import annotations

import re
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from torch_jax import config
from torch_jax.capture.replay import Replay
from torch_jax.core.node import Node
from torch_jax.memory import processes
from torch_jax.memory.storage import memory_in
from torch_jax.recorded.path import Constant, Given, Moving, Number, State, Step, Words

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")  # of functions, in the texts of jaxprs
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
        self._results: dict[int, tuple[Any, Any]] = {}  # by the array's id: a reference, and which
        self.graphs: list[Graph] = []

    def __call__(self, state: State, numbers: list[Any], arrays: list[Any]) -> Any:
        known: tuple[Any, ...] = ()
        if self._known is not None:
            known = tuple(
                self._known.get(id(a)) or self._result(a) or _from_others(a) or self._value(a)
                for a in arrays
            )
        self.graphs.append(Graph(state, tuple(numbers), known))
        return None if self._known is None else self._note_results

    def _note_results(self, nodes: list[Node]) -> None:
        """Note what a graph has computed, of which the next ones may be given some."""
        for at, node in enumerate(nodes):
            array = getattr(node, "array", None)
            if array is not None:
                self._results[id(array)] = weakref.ref(array), ("result", len(self.graphs), at)

    def _result(self, array: Any) -> Any:
        """Which result of a graph an array is; None where it is none."""
        reference, which = self._results.get(id(array), (None, None))
        return which if reference is not None and reference() is array else None

    def _value(self, array: Any) -> Any:
        """What is known of an array that the call has made: its values, where they are few."""
        if self._is_any or array.size > _SMALL or not processes.is_readable(array):
            return "new"
        return np.asarray(array).tobytes()


_received: dict[int, weakref.ref[Any]] = {}


def note_received(array: Any) -> None:
    """Note an array that came of other processes: it may be another one at each call."""
    key = id(array)
    _received[key] = weakref.ref(array, lambda _: _received.pop(key, None))


def _from_others(array: Any) -> str | None:
    reference = _received.get(id(array))
    return "received" if reference is not None and reference() is array else None


def known_arrays(replay: Replay, leaves: Sequence[Any]) -> dict[int, Any]:
    """The arrays that a compiled call would read, by their id: which tensor each belongs to."""
    memories = map(memory_in, replay.storages(leaves))
    return {id(memory): ("tensor", at) for at, memory in enumerate(memories)}


class Evidence:
    """What was recorded for one trace, and when it is to be compared again."""

    def __init__(self, graphs: list[Graph] | None):
        """``graphs``: of the last call that was recorded before the trace.

        None where nothing is known of it that would have to be so later on: an optimizer's counts
        stand on the device since, so that its operators are others. The first comparison then says
        what they are.
        """
        self._graphs, self._is_before_trace = graphs, True
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

    def difference(self, graphs: list[Graph], has_numbers: bool) -> Difference | None:
        """How a call differs from those before, None where it does not.

        ``has_numbers``: whether numbers are inputs of the compiled program, and may differ.
        """
        old, self._graphs = self._graphs, graphs
        is_before, self._is_before_trace = self._is_before_trace, False
        if old is None:
            return None
        # what was recorded before the trace may have had other values, as the guards had
        allowed: tuple[type, ...] = (Value,) if is_before else (Scalar,) if has_numbers else ()
        found = _difference(old, graphs, allowed)
        return None if found is None else Difference(found, is_before)


class Difference(NamedTuple):
    """How a recorded call differs from one before.

    Attributes:
      text: the operator, number or tensor, and its line.
      is_from_before: whether that call came before the trace, where guarded values may have been
        others too: then nothing is known to be wrong.
    """

    text: str
    is_from_before: bool


def _difference(old: list[Graph], new: list[Graph], allowed: tuple[type, ...]) -> str | None:
    """How graphs differ, operands that are of the classes ``allowed`` left aside."""
    found = _other_operator(
        [step for graph in old for step in graph.state.steps()],
        [step for graph in new for step in graph.state.steps()],
    )
    if found is not None:
        return found
    if [graph.state.operators for graph in old] != [graph.state.operators for graph in new]:
        return None  # cut elsewhere, for a check of an index: results are numbered otherwise
    for before, now in zip(old, new, strict=True):
        found = _other_operand(before, now, allowed) or _other_array(before, now)
        if found is not None:
            return found
    return None


def _other_operator(old: list[Step], new: list[Step]) -> str | None:
    for was, now in zip(old, new, strict=False):
        if not _do_the_same(was, now):
            return (
                f"it called {now.name} at {now.line}, where it had called {was.name} at {was.line}"
            )
    if len(old) != len(new):
        return f"it called {len(new)} operators, where it had called {len(old)}"
    return None


def _do_the_same(was: Step, now: Step) -> bool:
    """Whether two steps compute the same of their operands.

    States, entries and bodies are made anew when they have been forgotten in between, so it is not
    asked whether they are the same objects, or only at first.
    """
    if was.body is now.body:
        return True
    if was.name != now.name:
        return False
    texts = [_ADDRESS.sub("", str(step.body.jaxpr)) for step in (was, now)]
    constants = [[np.asarray(c).tobytes() for c in step.body.jaxpr.consts] for step in (was, now)]
    return texts[0] == texts[1] and constants[0] == constants[1]


def _other_operand(old: Graph, new: Graph, allowed: tuple[type, ...]) -> str | None:
    for (_, before), (step, after) in zip(_operands(old), _operands(new), strict=True):
        for was, now in zip(before, after, strict=True):
            if was == now:
                continue
            if not (isinstance(was, Value) and isinstance(now, Value)):
                return f"{step.name} at {step.line} was given another tensor than before"
            if not isinstance(now, allowed):
                return f"{step.name} at {step.line} was given {now}, where it had been given {was}"
    return None


class Value(str):
    """An operand that is known by its value, as a text, which tells zeros and not-a-numbers."""


class Scalar(Value):
    """A number, which may be an input of the program too; others are where a view begins."""


def _operands(graph: Graph) -> Iterator[tuple[Step, list[Any]]]:
    """For each operator of a graph what it is given: values, or which results and arrays."""
    numbers = iter(graph.numbers)
    for step in graph.state.steps():
        found: list[Any] = []
        for source in step.sources:
            if isinstance(source, Number):
                found.append(Scalar(repr(next(numbers))))
            elif isinstance(source, Moving):
                found.append(Value(str(list(islice(numbers, source.length)))))
            elif isinstance(source, Constant):
                value = np.asarray(source.value)
                found.append(Value(str(value.ravel().tolist())))
            else:
                found.append(source)
                if isinstance(source, Words):
                    deque(islice(numbers, 4), maxlen=0)  # others at each call
        yield step, found


def _other_array(old: Graph, new: Graph) -> str | None:
    for at, (was, now) in enumerate(zip(old.arrays, new.arrays, strict=False)):
        if was != now:
            return f"{_reader(new.state, at)} read another tensor than before, or other values"
    return None


def _reader(state: State, at: int) -> str:
    for step in state.steps():
        if Given(at) in step.sources:
            return f"{step.name} at {step.line}"
    return "no operator"
