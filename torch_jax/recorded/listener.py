"""Those that hear of the graphs of a recording, and say how their programs are made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch_jax.core.node import Node
from torch_jax.recorded.path import State

if TYPE_CHECKING:
    from torch_jax.recorded.program import Program


class Listener:
    """Hear of the graphs that a recorder runs; this one takes no notice."""

    # whether checks of indices are recorded with the rest, and raised for by the listener; else
    # each is run at once
    takes_checks = False
    needs_program = False  # whether a graph is to be compiled when it is run for the first time
    name = ""  # what users call the code that is recorded
    where = "a function under torch_jax.jit"  # for errors
    is_differentiable = True  # whether gradients may be left in tensors that the code finds
    options: dict[str, Any] = {}  # of XLA's compiler, beside those of all programs

    def __init__(self, name: str = "", takes_checks: bool = False) -> None:
        self.name, self.takes_checks = name, takes_checks

    def before(self, state: State, numbers: list[Any], arrays: list[Any]) -> None:
        """Hear of a graph, and of the numbers and arrays that it is given, before it is run."""

    def after(self, state: State, nodes: list[Node], program: Program | None) -> None:
        """Hear of its results, and of the program; None where its operators ran one by one."""

    def check(self, flag: Node, message: str, kind: type[Exception]) -> None:
        """Hear of a truth value of the graph, and of the error to raise where it is false."""

    def may_take(self, arrays: list[Any], dead: frozenset[int]) -> frozenset[int]:
        """Return which arrays a program may write over, ``dead`` those without other holders."""
        return dead


SILENT = Listener()
