"""Paths: all sequences of operators that have been recorded, as one tree.

Each operator that is written down leads from one :class:`State` of the tree to another. So the
graph that a recording has made is known at any moment by the state that it has come to, exactly and
without a second walk; the state holds the programs that were compiled for it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from itertools import islice
from typing import Any, ClassVar, NamedTuple

# The code of an operand in a step's key. Results of operators are their numbers, from 0 on; arrays
# that the graph is given are ``LEAF``, ``LEAF - 1``, and so on.
FLOAT, INT, BOOL, WORDS, MOVING, LEAF = -1, -2, -3, -4, -5, -16


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


def numbers_of(source: Any, rest: Iterator[Any]) -> tuple[Any, ...]:
    """Return the numbers of a run that an operand takes, the next of the ``rest``."""
    match source:
        case Number():
            count = 1
        case Words():
            count = 4
        case Moving(length):
            count = length
        case _:
            count = 0
    return tuple(islice(rest, count))


class Constant(NamedTuple):
    """A value that is part of the graph; ``is_start`` of one that says where a view begins."""

    value: Any
    is_start: bool = False


class State:
    """A point of the tree: one sequence of operators.

    Attributes:
      after: the states that one more operator leads to, by its key.
      before: the state that ``step`` was added to; None at the root.
      nodes: how many results there are, ``step``'s included.
      given: how many arrays have been given.
      operators: how many operators there are.
      outs: for each result of ``step``: its aval, shape and dtype.
      programs: what has been compiled for a graph that ends here.
      runs: how often a recording has ended here.
      number: of the graph that ends here, by the order of compilation; 0 where there is none.
      may_collect: whether garbage, which makes results live, is yet to be collected for the graph.
      count: how many states have been made, less those that were cut off.
    """

    __slots__ = (
        "after", "before", "given", "may_collect", "nodes", "number", "operators", "outs",
        "programs", "runs", "step",
    )  # fmt: skip
    count: ClassVar[int] = 0

    def __init__(self, before: State | None, step: Any, outs: tuple = (), given: bool = False):
        self.before, self.step, self.outs = before, step, outs
        self.nodes: int = (before.nodes if before else 0) + len(outs)
        self.given: int = (before.given if before else 0) + given
        self.operators: int = (before.operators if before else 0) + (step is not None)
        self.after: dict[Hashable, State] = {}
        self.programs: list[Any] = []
        self.runs = self.number = 0
        self.may_collect = True
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


class Step(NamedTuple):
    """An operator of a graph."""

    entry: Any  # compiled: it runs the operator by itself
    sources: tuple[Any, ...]  # where its operands come from
    body: Any  # its jaxpr, without the check of indices
    name: str  # for reports
    line: str  # of the user's code that called it when the graph was first recorded
