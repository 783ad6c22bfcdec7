"""The operators of a recorded graph run by themselves, as long as it has no program."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax
import numpy as np
import torch

from torch_jax._private import jax_core, pytorch
from torch_jax.core import absent
from torch_jax.core.node import Node
from torch_jax.core.x64 import x64
from torch_jax.memory import dtypes, sharding, shared, transfer, windows
from torch_jax.recorded.path import Constant, Given, Moving, Number, Result, Step, Words


def compile_nothing() -> bool:
    """Return whether operators compile nothing: where PyTorch's kernels run them."""
    return shared.SETTING.by_torch and not sharding.Use.begun and jax.process_count() == 1


@pytorch.kernels_alone()
def run_one_by_one(
    steps: Sequence[Step], given: tuple[list, list, list], wanted: Sequence[int]
) -> list[Any]:
    """Run each operator as eager mode does, of floats, integers and arrays; keep what is wanted."""
    operands = Operands(*given)
    dying, by_torch = _dying(steps, frozenset(wanted)), compile_nothing()
    results = operands.results
    for step, gone in zip(steps, dying, strict=True):
        memories = operands.of(step.sources)
        found = _by_torch(step, memories, gone) if by_torch else None
        if found is None:
            memories = list(map(_as_array, memories))
            for source, memory in zip(step.sources, memories, strict=True):
                if isinstance(source, Result):  # which later operators must not write
                    results[source.at] = memory
            with x64(), at_once():
                arrays = step.entry.run.call(*memories)
            found = [arrays] if step.entry.simple else list(arrays[: len(step.body.outs)])
        results += found
        for at in gone:
            results[at] = None
    return [_as_array(results[at]) for at in wanted]


@pytorch.kernels_alone()
def make(entry: Any, maker: Any, memories: Sequence[Any]) -> list[Any]:
    """Return arrays made at once of numbers alone, and of the forms of other operands."""
    if absent.is_chosen():
        return [absent.Absent(shape, dtype) for _, shape, dtype in maker.outs]
    call = entry.on_host if compile_nothing() else None
    if call is not None:
        if (found := call(list(map(_form, memories)), maker.outs)) is not None:
            return list(map(_as_array, found))
    with x64():
        return maker.run.call(*map(windows.operand, maker.of(memories)))


def _form(memory: Any) -> Any:
    """Return an operand, a tensor of its form for one that has elements."""
    if isinstance(memory, Node | jax.Array):
        return torch.empty(memory.shape, dtype=dtypes.to_torch(memory.dtype), device="cpu")
    return windows.operand(memory)


def _dying(steps: Sequence[Step], wanted: frozenset[int]) -> list[list[int]]:
    """Return for each operator the results that no later one takes."""
    last: dict[int, int] = {}
    for number, step in enumerate(steps):
        last |= {source.at: number for source in step.sources if isinstance(source, Result)}
        last |= dict.fromkeys(range(len(last), len(last) + len(step.body.outs)), number)
    dying: list[list[int]] = [[] for _ in steps]
    for at, number in last.items():
        if at not in wanted:
            dying[number].append(at)
    return dying


def _by_torch(step: Step, given: list[Any], gone: list[int]) -> list[torch.Tensor] | None:
    """Run an operator by PyTorch's CPU kernel, if any; it writes copies, or what no other takes."""
    if (call := step.entry.on_host) is None:
        return None
    memories = list(map(_as_tensor, step.sources, given))
    for slot in step.entry.slots:
        memory, source = memories[slot], step.sources[slot]
        is_last = isinstance(source, Result) and source.at in gone and call.fits
        if not is_last or memory is not given[slot] or sum(one is memory for one in memories) > 1:
            memories[slot] = memory.clone()
    return call(memories, step.body.outs)


def _as_tensor(source: Any, value: Any) -> Any:
    """Return an operand as :class:`torch_jax.eager.on_host.OnHost` takes it."""
    if isinstance(value, jax.Array):
        return shared.as_tensor(value)
    if isinstance(source, Given) and not isinstance(value, torch.Tensor):
        return transfer.borrowed(np.array(value), dtypes.to_torch(value.dtype))  # of a CPU tensor
    return value


def _as_array(value: Any) -> Any:
    return jax_core.array_maker()(value) if isinstance(value, torch.Tensor) else value


def at_once() -> AbstractContextManager[Any]:
    """Return a context in which recorded operators run, outside of a trace that looks at them."""
    return nullcontext() if jax_core.is_outside_traces() else jax_core.outside_of_traces()


class Operands:
    """The operands of a graph's operators, one operator after the other."""

    def __init__(self, floats: Any, integers: Any, arrays: Any):
        """Take arrays, and numbers as vectors of a traced program or as lists of Python's."""
        self._floats, self._integers, self._arrays = floats, integers, arrays
        self._next_float = self._next_integer = 0
        self.results: Any = []

    def of(self, sources: Sequence[Any]) -> list[Any]:
        return list(map(self._operand, sources))

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
