"""Programs that are lowered and not run: to look at, or for chips that are elsewhere."""

from __future__ import annotations

import functools
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from torch_jax import target
from torch_jax._private import jax_core
from torch_jax.compiler import disk_cache, options
from torch_jax.recorded.path import State
from torch_jax.recorded.program import Numbered, Program
from torch_jax.target import Target


class Lowered:
    """A program that was lowered but not run; XLA compiles it when it is first asked about.

    With the setting ``target`` it is compiled for chips that are elsewhere.

    Attributes:
      kept_in: the folder in which the executable is kept for those chips; None: nowhere.
    """

    kept_in: Path | None = None

    def __init__(self, program: Any):
        """Take what JAX has lowered, a ``jax.stages.Lowered``."""
        self._lowered = program

    @functools.cached_property
    def compiled(self) -> Any:
        """Return the executable, as ``jax.stages.Compiled``."""
        is_here = target.chosen() is None
        with nullcontext() if is_here else disk_cache.elsewhere(self.kept_in):
            return self._lowered.compile(options.of_lowered(self._lowered))

    def as_text(self, dialect: str = "stablehlo") -> str:
        """Return the program as text: ``stablehlo``, or ``hlo`` as XLA optimized it."""
        if dialect == "stablehlo":
            return self._lowered.as_text()
        if dialect == "hlo":
            return self.compiled.as_text()
        raise ValueError(f"dialect must be 'stablehlo' or 'hlo', not {dialect!r}")

    def cost_analysis(self) -> Any:
        """Return XLA's estimates: ``flops``, ``bytes accessed`` …"""
        return jax_core.costs_of(self.compiled)

    def memory_analysis(self) -> Any:
        """Return the executable's memory: ``argument_size_in_bytes``, ``temp_size_in_bytes`` …"""
        return self.compiled.memory_analysis()


class ForTarget(Lowered):
    """A program of a target.

    Attributes:
      name: of the jitted function; empty outside of any.
      line: the user's line of its last operator.
      operators: how many it has.
      calls: how often it would have run.
    """

    def __init__(self, lowered: Any, name: str, state: State):
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

    def run(
        self, name: str, program: Program, state: State, given: Numbered, wanted: tuple
    ) -> None:
        """Note a run of a program, and lower it if it is the first."""
        found = self._of.get(program)
        if found is None:
            found = self._of[program] = ForTarget(program.lower(given, wanted), name, state)
            self.programs.append(found)
        found.calls += 1
        self.runs.append(found)
        self.outside += 0 if name else state.operators


OPEN: list[Programs] = []
"""Of the blocks of :func:`torch_jax.compile_for` that are open."""
