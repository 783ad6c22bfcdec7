"""Programs of recorded graphs: which results a run needs, which arrays it may write over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import numpy as np

from torch_jax._private import jax_core
from torch_jax.compiler import options
from torch_jax.core.x64 import x64
from torch_jax.recorded.path import Constant, Given, Moving, Number, Result, State, Step, Words

# After so many programs for one graph, the next gives all that was ever asked of it.
_MOST = 4


class Program:
    """A graph compiled for some of its results.

    Attributes:
      outputs: the numbers of the results that it gives.
      donated: which of the arrays it may write its results over.
    """

    def __init__(self, state: State, outputs: tuple[int, ...], donated: tuple[int, ...]):
        self.outputs, self.donated = outputs, donated
        self._needed = frozenset(outputs)
        self._may_donate = frozenset(donated)
        self._call = jax.jit(
            _function(state.steps(), outputs),
            donate_argnums=tuple(at + 2 for at in donated),
            compiler_options=options.whole(),
            keep_unused=True,
        )

    def serves(self, live: frozenset[int], dead: frozenset[int]) -> bool:
        """Whether all results in ``live`` are given, and none but ``dead`` arrays are lost."""
        return live <= self._needed and self._may_donate <= dead

    def __call__(self, floats: list[float], integers: list[int], arrays: list[Any]) -> list[Any]:
        """Run over the numbers and arrays of a recording."""
        with x64(), at_once():
            return self._call(np.array(floats, np.float64), np.array(integers, np.int64), *arrays)


def program_for(
    state: State, live: tuple[int, ...], dead: frozenset[int], form: Callable[[int], Any]
) -> tuple[Program, bool]:
    """The program of a graph that gives what is ``live``, and whether it is a new one.

    Args:
      state: the graph.
      live: the results that somebody can reach.
      dead: the arrays that nobody else can reach.
      form: shape and dtype of an array, by its number.
    """
    wanted = frozenset(live)
    fitting = [program for program in state.programs if program.serves(wanted, dead)]
    if fitting:
        return min(fitting, key=lambda program: len(program.outputs)), False
    if len(state.programs) >= _MOST:
        wanted = wanted.union(*(program.outputs for program in state.programs))
    outputs = tuple(sorted(wanted))
    program = Program(state, outputs, _donatable(state, outputs, dead, form))
    state.programs.append(program)
    return program, True


def at_once() -> AbstractContextManager[Any]:
    """What is recorded runs at once where a trace looks at it: it was called outside of that."""
    return nullcontext() if jax_core.is_outside_traces() else jax_core.outside_of_traces()


def _donatable(
    state: State, outputs: Sequence[int], dead: frozenset[int], form: Callable[[int], Any]
) -> tuple[int, ...]:
    """Those of the dead arrays that have the form of a result, one for each."""
    forms = _forms(state)
    free = Counter(forms[at] for at in outputs)
    found = []
    for at in sorted(dead):
        if free[form(at)] > 0:
            free[form(at)] -= 1
            found.append(at)
    return tuple(found)


def _forms(state: State) -> list[Any]:
    """Shape and dtype of every result."""
    forms: list[Any] = []
    for one in state.way():
        forms += [(shape, dtype) for _, shape, dtype in reversed(one.outs)]
    return forms[::-1]


def _function(steps: Sequence[Step], outputs: Sequence[int]) -> Callable[..., list[Any]]:
    """The function that computes a graph."""

    def torch_jax_recorded(floats: Any, integers: Any, *arrays: Any) -> list[Any]:
        operands = Operands(floats, integers, arrays)
        for step in steps:
            operands.results += step.body.run(*operands.of(step))
        return [operands.results[at] for at in outputs]

    return torch_jax_recorded


def run_one_by_one(
    steps: Sequence[Step], floats: list[float], integers: list[int], arrays: Sequence[Any]
) -> list[Any]:
    """What a graph computes, each operator run by itself as in eager mode: all results."""
    operands = Operands(floats, integers, arrays)
    for step in steps:
        with x64():
            arrays = step.entry.run.call(*operands.of(step))
        operands.results += [arrays] if step.entry.simple else arrays[: len(step.body.outs)]
    return operands.results


class Operands:
    """The operands of a graph's operators, one operator after the other."""

    def __init__(self, floats: Any, integers: Any, arrays: Sequence[Any]):
        """Numbers are vectors of a traced program, or lists of Python's."""
        self._floats, self._integers, self._arrays = floats, integers, arrays
        self._next_float = self._next_integer = 0
        self.results: list[Any] = []

    def of(self, step: Step) -> list[Any]:
        """The operands of the next operator."""
        return [self._operand(source) for source in step.sources]

    def _operand(self, source: Any) -> Any:
        match source:
            case Result(index):
                return self.results[index]
            case Given(index):
                return self._arrays[index]
            case Number(kind):
                return self._number(kind)
            case Words():
                return self._take(4, np.dtype(np.uint32))
            case Moving(count, dtype, True):
                return self._take(count, dtype)
            case Moving():
                return self._number(int)
        assert isinstance(source, Constant)
        return source.value

    def _number(self, kind: type) -> Any:
        if kind is float:
            self._next_float += 1
            return self._floats[self._next_float - 1]
        self._next_integer += 1
        number = self._integers[self._next_integer - 1]
        return number != 0 if kind is bool else number

    def _take(self, count: int, dtype: Any) -> Any:
        self._next_integer += count
        part = self._integers[self._next_integer - count : self._next_integer]
        return part.astype(dtype) if isinstance(part, jax.Array) else np.array(part, dtype)
