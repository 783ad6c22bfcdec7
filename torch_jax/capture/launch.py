"""A program with the storages that it reads and writes, to be launched at each call."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from torch_jax.budgets import ARRAYS_WORTH_CALM
from torch_jax.capture.cpu_tensors import OfHost
from torch_jax.capture.left_behind import LeftBehind
from torch_jax.capture.memories import Memories
from torch_jax.capture.observer import Observer
from torch_jax.capture.storages import Fixed, OfStorage
from torch_jax.capture.tape import Changed
from torch_jax.compiler.donation import copy_shared
from torch_jax.core import errors, signals
from torch_jax.core.collection import no_collection
from torch_jax.core.lent import lent
from torch_jax.core.tracers import TracedElsewhere, is_traced_elsewhere
from torch_jax.core.x64 import x64
from torch_jax.memory import lending, sharding
from torch_jax.memory.storage import memory_in


class Launch:
    """The program of an observed call, over the storages of later ones.

    Attributes:
      memories: the storages.
      written: which of them the program writes.
      donated: which of their arrays the program may write over.
    """

    def __init__(self, observer: Observer, left: LeftBehind):
        graph = observer.graphs[0]
        self._program = graph.program
        self._places = {node: at for at, node in enumerate(self._program.outputs)}
        self.memories = Memories(observer, left)
        self._others = [one for one in graph.sources if not isinstance(one, OfStorage)]
        others = iter(range(len(self._others)))
        self._order = [s.at if isinstance(s, OfStorage) else ~next(others) for s in graph.sources]
        self.written = [at for at, _ in left.written]
        self._results = self.places(node for _, node in left.written)
        self.donated = [self._order[at] for at in self._program.donated if self._order[at] >= 0]
        arrays = [observer.storages.met[at].storage.array for at in self.written]
        self._placeholders = [lent(array.shape, array.dtype) for array in arrays]
        many = len(self._program.outputs) > ARRAYS_WORTH_CALM
        self._calm: Callable[[], Any] = no_collection if many else contextlib.nullcontext

    def places(self, nodes: Iterable[int]) -> list[int]:
        """Return where results of the graph are among the outputs of the program."""
        return [self._places[node] for node in nodes]

    def __call__(self, leaves: Sequence[Any], floats: Any, integers: Any) -> list[Any]:
        """Run the program, and put back what it has written; returns its outputs."""
        storages = self.memories.of_call(leaves)
        others = [_read(source, leaves) for source in self._others]
        while True:
            try:
                with self._calm():
                    return self._run(storages, others, floats, integers)
            except TracedElsewhere:  # another thread has lent a memory, or has only recorded it
                for memory in storages:
                    memory_in(memory)

    def _run(self, storages: list, others: list, floats: Any, integers: Any) -> list[Any]:
        arrays: list[Any] = []

        def arguments() -> tuple:
            copy_shared(arrays, self.donated)
            given = [arrays[at] if at >= 0 else others[~at] for at in self._order]
            return floats, integers, given

        try:
            with x64():
                return signals.undisturbed(
                    lending.run,
                    self._sharded if sharding.Use.begun else self._program,
                    arguments,
                    arrays,
                    [storages[at] for at in self.written],
                    self.written,
                    self._placeholders,
                    self._results,
                    storages,
                )
        except (TypeError, ValueError) as error:
            if is_traced_elsewhere(arrays):
                raise TracedElsewhere from error
            if errors.is_deleted(error):
                raise errors.translate(error, "in a function under torch_jax.jit") from error
            raise Changed(f"the memory behind a tensor has another form now: {error}") from error
        except RuntimeError as error:
            raise errors.translate(error, "in a function under torch_jax.jit") from error

    def _sharded(self, floats: Any, integers: Any, arrays: list[Any]) -> list[Any]:
        """Run over arrays that may lie on a mesh; what is written keeps its sharding."""
        placed = sharding.on_one_mesh(arrays) or arrays
        at_of = {at: n for n, at in enumerate(self._order) if at >= 0}
        written = [
            (arrays[at_of[at]], result)
            for at, result in zip(self.written, self._results, strict=True)
            if at in at_of
        ]
        wanted: list[Any] = [None] * len(self._program.outputs)
        for old, result in written:
            wanted[result] = sharding.sharding_of(old)
        outputs = self._program(floats, integers, placed, tuple(wanted))
        for old, result in written:
            (outputs[result],) = sharding.kept([old], [outputs[result]])
        return outputs


def _read(source: Any, leaves: Sequence[Any]) -> Any:
    """Return an array that comes from no storage."""
    if isinstance(source, OfHost):
        return source.read(leaves)
    assert isinstance(source, Fixed)
    return source.array
