"""Paths: all sequences of operators that have been recorded, as one tree.

Each operator that is written down leads from one :class:`State` of the tree to another. So the
graph that a recording has made is known at any moment by the state that it has come to, exactly and
without a second walk; the state holds the programs that were compiled for it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any, ClassVar, NamedTuple

import numpy as np

from torch_jax import config
from torch_jax.core.numbers import GivenNumber
from torch_jax.memory.windows import Place, operand

# The code of an operand in a step's key. Results of operators are their numbers, from 0 on; arrays
# that the graph is given are ``LEAF``, ``LEAF - 1``, and so on.
WORDS, MOVING, LEAF = -4, -5, -16
NUMBERS = {float: -1, GivenNumber: -1, int: -2, bool: -3}


class Result(NamedTuple):
    """An operand that an earlier operator has made."""

    at: int


class Given(NamedTuple):
    """An operand that the graph is given."""

    at: int


class Number(NamedTuple):
    """A Python number, the next of those that a run is given."""

    kind: type


class Words(NamedTuple):
    """The four words of a draw, the next of the integers that a run is given."""


class Moving(NamedTuple):
    """Integers that differ from run to run, the next of those that a run is given."""

    length: int
    dtype: Any
    is_list: bool


class Constant(NamedTuple):
    """A value that is part of the graph; ``is_start`` of one that says where a view begins."""

    value: Any
    is_start: bool = False


def source_of(code: Any, memory: Any) -> Any:
    """Return where a graph's operand comes from, by its code in a key."""
    if type(code) is tuple:
        if type(memory) is Place:
            return Constant(np.asarray(memory.starts), is_start=True)
        return Constant(operand(memory))
    if code >= 0:
        return Result(code)
    if code <= LEAF:
        return Given(LEAF - code)
    if code == WORDS:
        return Words()
    if code == MOVING:
        given = np.asarray(operand(memory))
        return Moving(len(memory.values), given.dtype, given.ndim == 1)
    return Number(float if isinstance(memory, float) else type(memory))


def numbers_of(source: Any, rest: Iterator[Any]) -> tuple[Any, ...]:
    """Return the numbers of a run that an operand takes, the next of the ``rest``."""
    fixed: dict[type, int] = {Number: 1, Words: 4}
    count = source.length if isinstance(source, Moving) else fixed.get(type(source), 0)
    return tuple(islice(rest, count))


class State:
    """A point of the tree: one sequence of operators, of which ``step`` is the last."""

    __slots__ = (
        "after", "before", "check", "given", "may_collect", "nodes", "number", "operators",
        "programs", "runs", "step",
    )  # fmt: skip
    count: ClassVar[int] = 0  # how many have been made, less those that were cut off

    def __init__(self, before: State | None, step: Any, given: bool = False):
        self.before, self.step = before, step
        self.given: int = (before.given if before else 0) + given  # arrays on the way
        self.nodes: int = before.nodes if before else 0  # results of all operators
        self.operators: int = before.operators if before else 0
        if step is not None:
            self.nodes += len(step.body.outs)
            self.operators += 1
        self.after: dict[Hashable, State] = {}  # those that one more operator leads to, by its key
        self.programs: list[Any] = []  # compiled for the graph that ends here
        self.check: Any = None  # of the operator's indices, if it needs one
        self.runs = 0  # how often a recording has ended here
        self.number = 0  # of the graph, in the order of compilation
        self.may_collect = True  # garbage, which makes results live, for the graph
        State.count += 1

    def steps(self) -> list[Any]:
        """Return the operators that lead here, first to last."""
        return [state.step for state in self.way() if state.step is not None][::-1]

    def way(self) -> Iterator[State]:
        """Yield the states that lead here, last to first."""
        state: State | None = self
        while state is not None:
            yield state
            state = state.before


ROOT = State(None, None)
# Operators that have run at once, with the forms of arguments: hashes; and whether one was traced.
MET: dict[int, bool] = {}


class Step(NamedTuple):
    """An operator of a graph."""

    entry: Any  # compiled: it runs the operator by itself
    sources: tuple[Any, ...]  # where its operands come from
    body: Any  # its jaxpr, without the check of indices
    name: str  # for reports
    line: str  # of the user's code that called it when the graph was first recorded


# --- bounds on what is remembered -----------------------------------------------------------------

# What is forgotten is compiled again. A recording on a branch that is cut off goes on there: states
# know the ones before them, and a program is found where the recording ends.

_programs: OrderedDict[Any, State] = OrderedDict()  # and their graphs, the latest run last
_cutting = threading.Lock()


def note_run(program: Any, state: State) -> None:
    """Note that a program is about to run for a graph."""
    _programs[program] = state
    _programs.move_to_end(program)
    while len(_programs) > config.get("lazy_programs"):
        with suppress(KeyError, ValueError):  # of other threads, one was quicker
            oldest, graph = _programs.popitem(last=False)
            graph.programs.remove(oldest)


def keep(state: State, program: Any) -> None:
    """Keep a program compiled for a graph; it gives all results of those that it replaces."""
    for replaced in state.programs[1:]:
        _programs.pop(replaced, None)
    state.programs[1:] = [program]


def forget() -> None:
    """Forget all paths and programs."""
    with _cutting:
        ROOT.after.clear()
        MET.clear()
        _programs.clear()
        State.count = 1


def cut() -> None:
    """Forget parts of the tree if it has grown too large, those whose programs ran long ago."""
    most = config.get("lazy_states")
    if State.count <= most:
        return
    with _cutting:
        kept = {ROOT}
        for program, state in list(_programs.items())[::-1]:
            way = kept.union(state.way())
            if len(way) <= most // 2 or len(kept) == 1:
                kept = way
            else:
                _programs.pop(program, None)
        for state in kept:
            for key, child in list(state.after.items()):
                if child not in kept:
                    state.after.pop(key, None)
        State.count = len(kept)
