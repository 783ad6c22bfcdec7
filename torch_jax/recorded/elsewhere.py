"""``torch_jax.compile_for``: programs of code that runs without the chips that they are for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch_jax import config, target
from torch_jax.compiler.lowered import Lowered
from torch_jax.core import absent, waking
from torch_jax.recorded import lazy
from torch_jax.recorded.path import State
from torch_jax.recorded.program import Numbered, Program
from torch_jax.recorded.recorder import OPEN, Recorder
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
        if (found := self._of.get(program)) is None:
            found = self._of[program] = ForTarget(program.lower(given, wanted), name, state)
            self.programs.append(found)
        found.calls += 1
        self.runs.append(found)
        self.outside += 0 if name else state.operators


@contextmanager
def compile_for(name: str) -> Iterator[Programs]:
    """Compile for chips that need not be here; nothing is computed inside the block.

    Python runs as usual. Tensors of device ``jax`` have a form and no elements, so a model may be
    larger than this machine. Each program that would run is lowered for the target, and compiled
    by the target's compiler when it is asked about. A single number that Python looks at is 0;
    tensors that were made inside are of no use afterwards. The compilers come with ``jax[tpu]`` and
    ``jax[cuda13]``.

    Args:
      name: the chips, such as ``"tpu-v5e-4x4"``, ``"tpu-v5p-64"``, ``"gpu-h200"`` and
        ``"gpu-h100-8"``. TPUs are counted as in the names of Google Cloud.

    Returns:
      The programs, as :class:`torch_jax.recorded.elsewhere.Programs`.

    Raises:
      ValueError: there are no such chips.
      NoCompiler: their compiler is not installed.
      DataDependentError: inside the block, where more than a number is looked at.

    >>> import torch
    >>> from torch_jax.target import NoCompiler
    >>> try:
    ...     with compile_for("tpu-v5e-4x4") as found:
    ...         x = torch.ones(1 << 20, 1 << 14, device="jax") * 2
    ...     size = found.programs[0].memory_analysis().output_size_in_bytes
    ... except NoCompiler:
    ...     size = 1 << 36
    >>> size
    68719476736
    """
    chips = target.parse(name)
    waking.wake()
    with config.temporarily("target", name):
        target.devices()  # raises where the compiler is missing
        absent.LOOKS.clear()
        programs = Programs(chips)
        OPEN.append(programs)
        try:
            with lazy.outside(Recorder(yields=True)):
                yield programs
        finally:
            OPEN.remove(programs)
