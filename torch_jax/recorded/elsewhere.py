"""Programs for chips that are elsewhere: a recording is lowered in place of being run.

Its results are arrays without elements (:mod:`torch_jax.core.absent`).
"""

from __future__ import annotations

from typing import Any

from torch_jax.core.absent import Absent
from torch_jax.memory import sharding
from torch_jax.recorded.lowered import Lowered
from torch_jax.recorded.path import State
from torch_jax.recorded.program import Program, keep, program_for
from torch_jax.target import Target


class ForTarget(Lowered):
    """A program of a target.

    Attributes:
      name: of the jitted function; empty outside of any.
      line: the user's line of its last operator.
      operators: how many it has.
      calls: how often it would have run.
    """

    def __init__(self, lowered: Any, name: str, state: State):
        """Take what JAX has lowered for a graph."""
        super().__init__(lowered)
        self.name, self.operators, self.calls = name, state.operators, 0
        self.line = state.steps()[-1].line


class Programs:
    """Hold the programs that were lowered for a target.

    Attributes:
      target: the chips.
      programs: in the order of their first runs.
      runs: the same programs, one for each run.
      outside: how many operators were called outside of jitted functions.
      is_over: whether what comes from here on is not noted.
    """

    def __init__(self, chips: Target):
        self.target = chips
        self.programs: list[ForTarget] = []
        self.runs: list[ForTarget] = []
        self.outside = 0
        self.is_over = False
        self._of: dict[Program, ForTarget] = {}

    def run(self, name: str, program: Program, state: State, given: tuple, wanted: tuple) -> None:
        """Note a run of a program, and lower it if it is the first."""
        found = self._of.get(program)
        if found is None:
            floats, integers, arrays = given
            lowered = program.lower(floats, integers, arrays, wanted)
            found = self._of[program] = ForTarget(lowered, name, state)
            self.programs.append(found)
        found.calls += 1
        self.runs.append(found)
        self.outside += 0 if name else state.operators


OPEN: list[Programs] = []
"""Of the blocks of :func:`torch_jax.compile_for` that are open."""


def stand_in(name: str, state: State, nodes: list, given: tuple, live: Any, dead: Any) -> None:
    """Lower a graph in place of running it, and give its live results a form.

    Args:
      name: of the jitted function.
      state: the graph.
      nodes: all of its results.
      given: floats, integers and arrays.
      live: numbers of the results that code outside can reach.
      dead: numbers of the arrays that only this recording holds.
    """
    arrays = given[2]
    program, is_new = program_for(
        state, lambda: (live, dead), lambda at: (tuple(arrays[at].shape), arrays[at].dtype), False
    )
    if is_new:
        keep(state, program)
    wanted = tuple(sharding.wanted_by(nodes[at]) for at in program.outputs)
    if OPEN and not OPEN[-1].is_over:
        OPEN[-1].run(name, program, state, given, wanted)
    for at, place in zip(program.outputs, wanted, strict=True):
        node = nodes[at]
        node.array = sharding.settled(node, Absent(node.shape, node.dtype, place))
        node.recording = None
