"""Values of the device that hang on the host alone, such as the order of packed sequences.

What a function computes on the device of CPU tensors and numbers, and then asks back, is known at
each call before the program runs: the equations that made it are a small program of their own,
which the tape runs.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import torch

from torch_jax._private import jax_core
from torch_jax.core import tracers
from torch_jax.core.x64 import x64
from torch_jax.memory import transfer

_MOST = 200  # equations


class _Unknown(Exception):
    """The value hangs on what only the device has."""


def of(capture: Any, tensor: torch.Tensor) -> torch.Tensor | None:
    """A device tensor of a trace as a CPU tensor on its tape; None where the host cannot know it.

    ``capture`` is the :class:`~torch_jax.capture.capture.Capture` of the trace.
    """
    capture.see(tensor)  # what it holds is an input then, and not a constant
    array = transfer.value_of(tensor)
    if not tracers.is_traced(array):
        return None
    program = _Program(capture)
    try:
        result = program.add(array)
    except _Unknown:
        return None
    read = _Read(program.steps, program.takes, result)
    value = read(*(capture.tape.env[slot] for slot in program.slots))
    capture.host.makes(value, capture.tape.record(read, tuple(program.slots), value))
    return value


class _Program:
    """The equations behind a tracer, in order.

    Attributes:
      steps: of each its primitive, its parameters, its operands, and the numbers of its results.
      slots: the slots of the tape that it takes; ``takes`` are the numbers and dtypes of these.
    """

    def __init__(self, capture: Any):
        self.capture = capture
        self.steps: list[tuple[Any, dict[str, Any], list[tuple[bool, Any]], list[int]]] = []
        self.slots: list[int] = []
        self.takes: list[tuple[int, Any]] = []
        self._done: set[int] = set()
        self._kept: list[Any] = []  # the equations, whose ids are in ``_done``

    def add(self, value: Any) -> tuple[bool, Any]:
        """An operand: whether it is a constant, and the constant or its number."""
        value = jax_core.constant_of(value)
        if not isinstance(value, jax.core.Tracer):
            return True, value
        equation, number = jax_core.made_by(value)
        if equation is None or len(self._done) > _MOST:
            raise _Unknown
        if id(equation) not in self._done:
            self._done.add(id(equation))
            self._kept.append(equation)
            if equation.primitive.name == "input":
                self._input(equation.params, number)
            else:
                operands = [self.add(operand) for operand in equation.in_tracers]
                results = [id(variable) for variable in equation.outvars]
                self.steps.append((equation.primitive, equation.params, operands, results))
        return False, number

    def _input(self, params: dict[str, Any], number: int) -> None:
        source = self.capture.inputs[params["index"]]
        if source.kind not in ("host", "number"):
            raise _Unknown
        self.slots.append(source.source)
        self.takes.append((number, np.dtype(source.aval.dtype)))


class _Read:
    """Computes a value of what the tape has, on the device, and brings it to the CPU."""

    def __init__(self, steps: Any, takes: Any, result: tuple[bool, Any]):
        def run(*given: Any) -> Any:
            values = {number: x for (number, _), x in zip(takes, given, strict=True)}
            for primitive, params, operands, results in steps:
                inputs = [x if is_constant else values[x] for is_constant, x in operands]
                found = jax_core.bind(primitive, params, inputs)
                values.update(zip(results, found, strict=True))
            return result[1] if result[0] else values[result[1]]

        self._kinds = [dtype for _, dtype in takes]
        self._run = jax.jit(run)

    def __call__(self, *given: Any) -> torch.Tensor:
        arrays = [np.asarray(x, kind) for x, kind in zip(given, self._kinds, strict=True)]
        with jax_core.outside_of_traces(), x64():
            return transfer.host_copy(self._run(*arrays))
