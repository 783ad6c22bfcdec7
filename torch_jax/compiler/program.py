"""From a jaxpr to an executable; equal programs of one process share one."""

from __future__ import annotations

import hashlib
import sys
import warnings
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Protocol

import jax
import jax.numpy as jnp

from torch_jax import config
from torch_jax._private import jax_core
from torch_jax._private.jaxprs import core
from torch_jax.compiler import options
from torch_jax.core import crossed, progress
from torch_jax.core.x64 import x64


class Processes(Protocol):
    """Processes that run a program together, each with one device and arrays of its own."""

    sharding: Any
    """What each input claims to be over their devices."""

    def spread(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function with its collectives, over their devices."""

    def calling(self, executable: Callable[..., Any]) -> Callable[..., list[jax.Array]]:
        """What calls an executable with arrays of this process."""


class Program:
    """An executable with what is known of it.

    ``call`` takes the inputs in order, numbers gathered in one float64 vector at the front.
    """

    def __init__(
        self,
        closed: Any,
        numbers: Sequence[int],
        rest: Sequence[int],
        donated: set[int],
        shardings: Mapping[int, Any] = MappingProxyType({}),
        outputs: Sequence[Any] = (),
        processes: Processes | None = None,
    ):
        """Compile; all are indices of inputs, ``rest`` in the order they will come in.

        ``shardings`` are those of inputs that lie on a mesh, ``outputs`` those that the first
        outputs are to have, None where XLA decides. ``processes`` run it together.
        """
        self.avals = list(closed.in_avals)
        self.numbers, self.rest = numbers, rest
        self.donated = [at for at, index in enumerate(rest, start=1) if index in donated]
        function = self._function(core.jaxpr_as_fun(closed))
        everywhere = None
        if processes is not None:
            function, everywhere = processes.spread(function), processes.sharding
        vector = jax.ShapeDtypeStruct((len(numbers),), jnp.float64, sharding=everywhere)
        with x64(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Some donated buffers were not usable")
            jitted = jax.jit(
                function,
                donate_argnums=self.donated,
                keep_unused=True,
                **_out_shardings(closed, outputs),
            )
            shapes = [
                jax.ShapeDtypeStruct(
                    self.avals[i].shape, self.avals[i].dtype, sharding=shardings.get(i, everywhere)
                )
                for i in self.rest
            ]
            self.lowered: Any = jitted.lower(vector, *shapes)
            self.call = _compile(self.lowered)
        self._together = processes and processes.calling(self.call)

    @property
    def caller(self) -> Callable[..., list[jax.Array]]:
        """What calls the executable, with as little Python as there is."""
        return self._together or jax_core.native(self.call)

    def _function(self, run: Callable[..., Any]) -> Callable[..., Any]:
        numbers, rest, count = self.numbers, self.rest, len(self.avals)

        def torch_jax_program(vector: jax.Array, *arrays: jax.Array) -> list[jax.Array]:
            inputs: list[Any] = [None] * count
            for at, index in enumerate(numbers):
                inputs[index] = vector[at]
            for index, array in zip(rest, arrays, strict=True):
                inputs[index] = array
            return run(*inputs)

        return torch_jax_program


def _out_shardings(closed: Any, outputs: Sequence[Any]) -> dict[str, Any]:
    """What tells JAX how outputs are to be sharded; nothing where XLA decides of all."""
    if not any(outputs):
        return {}
    free = len(closed.out_avals) - len(outputs)
    return {"out_shardings": [*outputs, *(None for _ in range(free))]}


# What sys.getrefcount counts in ``copy_shared`` for an array that nobody else holds: the list of
# arrays, and the argument of getrefcount itself.
_ALONE = 2


def copy_shared(arrays: list[Any], donated: Collection[int], takes: bool = True) -> None:
    """Copy, in a list of a program's inputs, each donated array that somebody else holds too.

    An executable uses the memory of an array that is donated to it for its results, and the array
    is gone then. That is right where only the storage that will be given the result has held the
    array, and does not hold it now (:mod:`torch_jax.memory.lending`). It is wrong where another
    storage shares the array, as a clone does until one of the two is written: reference counts
    tell. The caller must hold the arrays in ``arrays`` alone: one more variable would cost a copy
    at each call. And it is wrong where a user knows the array (:mod:`torch_jax.core.crossed`).

    Args:
      arrays: the inputs, taken out of their storages.
      donated: the places of those that the executable takes.
      takes: False copies all of these, for a call that must leave its inputs as they are.
    """
    alone = _ALONE if takes else 0
    for at in donated:
        if sys.getrefcount(arrays[at]) > alone:
            with x64():
                arrays[at] = jnp.array(arrays[at], copy=True)
    if crossed.MARKED:  # a loop of its own: nearly always there are none
        for at in donated:
            if crossed.is_marked(arrays[at]):
                with x64():
                    arrays[at] = jnp.array(arrays[at], copy=True)


_executables: OrderedDict[bytes, Any] = OrderedDict()


def _compile(lowered: Any) -> Any:
    """Return the executable of a lowered program, or that of an equal one before it.

    A function that was traced again often gives the very program of an earlier trace (a state dict
    was loaded, a Python value changed that only looked important).
    """
    devices = jax_core.devices_of(lowered)  # programs over different meshes may read the same
    text = lowered.as_text()
    key = hashlib.sha256(f"{devices}{text}".encode()).digest()
    found = _executables.pop(key, None)
    with progress.program("a function under torch_jax.jit"):
        found = found or lowered.compile(options.whole(text))
    _executables[key] = found
    while len(_executables) > config.get("jit_executables"):
        _executables.popitem(last=False)
    return found


def clear_executables() -> None:
    """Forget every executable; functions that hold one keep it."""
    _executables.clear()
