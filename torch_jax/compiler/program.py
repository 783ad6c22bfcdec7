"""From a trace to an executable: its inputs are found while it runs, and gathered afterwards.

While a function is traced, each storage that is met for the first time becomes an input: an
equation ``x = input[index]`` without operands. When the trace is over these equations are taken
out of the jaxpr and their variables made its arguments, in order.
"""

from __future__ import annotations

import functools
import hashlib
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core

from torch_jax import config
from torch_jax.core.x64 import x64

Jaxpr = Any
Aval = jax.core.ShapedArray

_input = core.Primitive("input")
_input.def_abstract_eval(lambda *, index, aval: aval)


def new_input(trace: Any, index: int, aval: Aval) -> jax.Array:
    """A tracer of the outermost trace that stands for input ``index``."""
    with core.set_current_trace(trace), x64():
        return _input.bind(index=index, aval=aval)


def current_trace() -> Any:
    """JAX's innermost trace on this thread."""
    with core.take_current_trace() as trace:
        return trace


def with_inputs(closed: Any, avals: Sequence[Aval]) -> Any:
    """The closed jaxpr with its ``input`` equations turned into arguments, in order of index."""
    inner = closed.jaxpr
    found = {e.params["index"]: e.outvars[0] for e in inner.eqns if e.primitive is _input}
    unused = core.gensym()
    invars = [found.get(i) or unused(aval) for i, aval in enumerate(avals)]
    eqns = [e for e in inner.eqns if e.primitive is not _input]
    jaxpr = core.Jaxpr(
        inner.constvars, invars, inner.outvars, eqns, inner.effects, without_names(inner)
    )
    return core.ClosedJaxpr(jaxpr, closed.consts)


def position(closed: Any, index: int) -> int:
    """How many equations stand before the one of input ``index``, other inputs not counted."""
    count = 0
    for eqn in closed.jaxpr.eqns:
        if eqn.primitive is not _input:
            count += 1
        elif eqn.params["index"] == index:
            break
    return count


def without_names(jaxpr: Jaxpr) -> Any:
    """Debug information that claims no names for arguments and results."""
    info = jaxpr.debug_info
    replace = getattr(info, "_replace", None)
    return replace(arg_names=None, result_paths=None) if replace else info


class Program:
    """An executable with what is known of it.

    ``call`` takes the inputs in order, numbers gathered in one float64 vector at the front.
    """

    def __init__(self, closed: Any, numbers: Sequence[int], rest: Sequence[int], donated: set[int]):
        """Compile; all are indices of inputs, ``rest`` in the order they will come in."""
        start = time.perf_counter()
        self.avals = list(closed.in_avals)
        self.numbers, self.rest = numbers, rest
        self.donated = [at for at, index in enumerate(rest, start=1) if index in donated]
        function = self._function(core.jaxpr_as_fun(closed))
        vector = jax.ShapeDtypeStruct((len(numbers),), jnp.float64)
        with x64(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Some donated buffers were not usable")
            jitted = jax.jit(function, donate_argnums=self.donated, keep_unused=True)
            shapes = [
                jax.ShapeDtypeStruct(self.avals[i].shape, self.avals[i].dtype) for i in self.rest
            ]
            self.lowered: Any = jitted.lower(vector, *shapes)
            self.call, self.reused = _compile(self.lowered)
        self.seconds = time.perf_counter() - start

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


_executables: OrderedDict[bytes, Any] = OrderedDict()


def _compile(lowered: Any) -> tuple[Any, bool]:
    """The executable of a lowered program, and whether an equal one had been compiled before.

    A function that was traced again often gives the very program of an earlier trace (a state dict
    was loaded, a Python value changed that only looked important).
    """
    key = hashlib.sha256(lowered.as_text().encode()).digest()
    found = _executables.pop(key, None)
    reused = found is not None
    _executables[key] = found if reused else lowered.compile(compiler_options())
    while len(_executables) > config.get("jit_executables"):
        _executables.popitem(last=False)
    return _executables[key], reused


@functools.cache
def compiler_options() -> Any:
    """XLA's scheduler for concurrency costs a training step 5 to 15 % on CPUs with few cores."""
    if jax.default_backend() != "cpu":
        return None
    options: dict[str, Any] = {"xla_cpu_enable_concurrency_optimized_scheduler": False}
    try:
        jax.jit(lambda: 0).lower().compile(options)
    except Exception:  # this release of XLA has no such option
        return None
    return options


def clear_executables() -> None:
    """Forget every executable; functions that hold one keep it."""
    _executables.clear()
