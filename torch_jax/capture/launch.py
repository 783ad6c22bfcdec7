"""The program of an observed call, run over the memories of another."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

from torch_jax.budgets import ARRAYS_WORTH_CALM
from torch_jax.capture.observer import Observer, raise_failed_checks
from torch_jax.capture.results import LeftBehind
from torch_jax.capture.storages import OfStorage
from torch_jax.capture.tape import Changed
from torch_jax.compiler.donation import copy_shared
from torch_jax.core import errors
from torch_jax.core.collection import no_collection
from torch_jax.core.node import Lent
from torch_jax.core.tracers import TracedElsewhere, is_traced_elsewhere
from torch_jax.core.x64 import x64
from torch_jax.memory import lending, sharding
from torch_jax.memory.storage import memory_in


class Launch:
    """A program, and the memory or value that each of its arrays is."""

    def __init__(self, observer: Observer, left: LeftBehind):
        graph, storages = observer.graphs[0], observer.storages
        self._program, self._where = graph.program, observer.history.where
        places = graph.program.places
        self._checks: list[Any] = [(places[flag.index], *error) for flag, *error in observer.checks]
        self._proved = observer.proved
        self._others = [one for one in graph.sources if not isinstance(one, OfStorage)]
        others = iter(range(len(self._others)))
        # of each array that the program is given: the place of its storage, ``~`` of the others
        self._order = [s.at if isinstance(s, OfStorage) else ~next(others) for s in graph.sources]
        self.donated = [self._order[at] for at in self._program.donated if self._order[at] >= 0]
        self.written = [at for at, _ in left.written]  # of the memories
        gone = {storages.place_of(one.untyped_storage()) for one in observer.let_go}
        kept = [at for at in gone if at is not None and at not in self.written]
        lent = self.written + kept  # the latter hold afterwards what they held before
        results = [places[node] for _, node in left.written]
        results += [len(places) + at for at in kept]
        arrays = [storages.met[at].storage.array for at in lent]
        self._lending = lent, [Lent(array.shape, array.dtype) for array in arrays], results
        many = len(places) > ARRAYS_WORTH_CALM
        self._calm: Callable[[], Any] = no_collection if many else contextlib.nullcontext

    def proves(self, call: Any, memories: Any) -> bool:
        """Return whether the checks that the program leaves out hold for the arrays of a call."""
        storages = memories.of_call(call) if self._proved else []

        def array(at: int) -> Any:
            at = self._order[at]
            return memory_in(storages[at]) if at >= 0 else self._others[~at].read(call.leaves)

        return all(one.holds({at: array(at) for at in one.given}, n) for one, n in self._proved)

    def run(self, leaves: Sequence[Any], storages: list, numbers: tuple[Any, Any]) -> list[Any]:
        """Run the program, and put back what it has written; returns its outputs."""
        others = [source.read(leaves) for source in self._others]
        while True:
            try:
                with self._calm():
                    return self._run(storages, others, numbers)
            except TracedElsewhere:  # another thread has lent a memory, or has only recorded it
                for memory in storages:
                    memory_in(memory)

    def check(self, outputs: list[Any]) -> None:
        """Raise the error of an operator whose check is false, such as one of indices."""
        if self._checks:
            failed = ((outputs[at], *error) for at, *error in self._checks)
            raise_failed_checks(failed, self._where)

    def _run(self, storages: list, others: list, numbers: tuple[Any, Any]) -> list[Any]:
        arrays: list[Any] = []
        program = self._sharded if sharding.Use.begun else self._program

        def arguments() -> tuple:
            copy_shared(arrays, self.donated)
            return *numbers, [arrays[at] if at >= 0 else others[~at] for at in self._order]

        try:
            return lending.run(program, arguments, arrays, storages, *self._lending)
        except (TypeError, ValueError, AttributeError) as error:  # a placeholder is no array
            if is_traced_elsewhere(arrays):
                raise TracedElsewhere from error
            if errors.is_deleted(error):
                raise errors.translate(error, f"in {self._where}") from error
            raise Changed(f"the memory behind a tensor has another form now: {error}") from error
        except RuntimeError as error:
            raise errors.translate(error, f"in {self._where}") from error

    def _sharded(self, floats: Any, integers: Any, arrays: list[Any]) -> list[Any]:
        """Run over arrays that may lie on a mesh; what is written keeps its sharding."""
        with x64():
            placed = sharding.on_one_mesh(arrays) or arrays
        at_of = {at: n for n, at in enumerate(self._order)}
        wanted: list[Any] = [None] * len(self._program.outputs)
        for at, result in zip(self.written, self._lending[2], strict=False):
            if at in at_of:
                wanted[result] = sharding.sharding_of(arrays[at_of[at]])
        return self._program(floats, integers, placed, tuple(wanted))
