"""Collectives inside of one compiled program, which all processes of the program run together.

A collective that is asked for while ``torch_jax.jit`` traces a function becomes a part of it: the
program then runs over one device of each process, each with its own arrays
(:mod:`.programs`). What pairs a collective with those of the other processes is its place in the
order of all, and nothing else: so a process may run as one program what another one, whose Python
has to run, asks for one by one. XLA is free to move what does not depend on each other: hence
collectives of one program are made to depend on the one before.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakSet

import jax
import jax.numpy as jnp
import torch

from torch_jax.capture.host.tape import Changed
from torch_jax.compiler import jaxpr
from torch_jax.core.active import ACTIVE
from torch_jax.core.tracers import NotTraceableError
from torch_jax.distributed import programs
from torch_jax.distributed.work import LAUNCHER, ProgramWork, TracedWork, write_results
from torch_jax.memory import sharding, transfer

MODELS: WeakSet[torch.nn.parallel.DistributedDataParallel] = WeakSet()
"""Those whose reducers must not be left in the middle of a backward pass."""


class Together:
    """What a compiled function with collectives runs over; see ``compiler.program.Processes``."""

    def __init__(self, group: Any):
        """``group`` is the process group that was asked for a collective."""
        self.ranks, self.timeout = group.ranks, group.timeout
        self.sharding = programs.same(self.ranks)
        self._group = weakref.ref(group)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Together) and self.ranks == other.ranks

    def __hash__(self) -> int:
        return hash(self.ranks)

    def spread(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function over all processes, each with arrays of its own."""
        return programs.spread(self.ranks, function)

    def calling(self, executable: Callable[..., Any]) -> Callable[..., list[jax.Array]]:
        """What calls an executable in its turn among the collectives, and waits for it."""

        def call(*arrays: Any) -> list[jax.Array]:
            group = self._group()
            if group is None or group.is_over:
                raise Changed("the process group of its collectives was destroyed")
            results: list[jax.Array] = []
            over = programs.over(self.sharding, arrays)
            run = functools.partial(programs.launch, executable, over)
            work = ProgramWork("a compiled function", run, results.extend, self.timeout)
            LAUNCHER.launch(work).wait()
            return results

        return call


def run(
    together: Together,
    body: programs.Body,
    static: tuple,
    inputs: Sequence[torch.Tensor],
    outputs: Sequence[torch.Tensor],
) -> TracedWork:
    """Make a collective a part of the program that is traced; it is done as the trace goes on."""
    tracer = ACTIVE.tracer
    if sharding.Use.begun:
        raise NotTraceableError(
            "a compiled function has collectives of torch.distributed and tensors that are sharded "
            "over the devices of one process: one program cannot have both"
        )
    if jaxpr.current_trace() is not tracer.trace:
        raise NotTraceableError(
            "a collective of torch.distributed inside of a loop, a branch or another function that "
            "is traced by itself is no part of a compiled program"
        )
    if tracer.processes is None:
        tracer.undo.append(_end_backward_passes)
    tracer.run_together(together)
    for tensor in (*inputs, *outputs):
        tracer.see(tensor)
    arrays = [transfer.value_of(tensor.detach()) for tensor in inputs]
    with programs.axis(together.ranks):
        arrays = _after(tracer.last_collective, arrays)
        values = body(*static, *arrays)
    tracer.last_collective = [value for value in values if value.size][-1:]
    write_results(outputs, values)
    return TracedWork(outputs)


def _end_backward_passes() -> None:
    """A trace has failed: a reducer that it left in the middle of a pass begins anew."""
    for model in list(MODELS):
        reset = getattr(model.reducer, "_reset_state", None)
        try:
            model.reducer._check_reducer_finalized()
        except RuntimeError:
            if reset is not None:
                reset()


def _after(before: Sequence[jax.Array], arrays: list[jax.Array]) -> list[jax.Array]:
    """The same arrays, but computed when others have been.

    Of an optimization barrier nothing is left when XLA decides on an order. No number is unequal
    and equal to itself; but XLA does not know.
    """
    for array in before:
        one = jnp.real(array).reshape(-1)[0].astype(jnp.float32)
        never = (one != one) & (one == one)
        arrays = [jnp.where(never, jnp.zeros_like(each), each) for each in arrays]
    return arrays
