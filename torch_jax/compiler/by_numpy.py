"""Small functions of arrays, computed by NumPy with no compilation, where that changes no bit.

To compile an operator for one more shape takes some 20 ms, nearly all of it JAX's and XLA's fixed
costs. A first answer of a model meets hundreds of operators and shapes, many of them once. Where
JAX computes on the CPU its arrays are NumPy's, uncopied; so an operator all of whose primitives
give the same bits in NumPy (:mod:`torch_jax.compiler.exact`) need not be compiled to be called a
few times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import torch

from torch_jax._private import jax_core
from torch_jax._private.jaxprs import core
from torch_jax.compiler import exact

_CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "closed_call": "call_jaxpr",
}
_DEBUGGING = ("jax_debug_nans", "jax_debug_infs", "jax_disable_jit")
_LEAST, _ONE = np.float32(1e-40), np.float32(1)


class _NotExact(Exception):
    """A primitive that NumPy does not compute as XLA does."""


def by_numpy(traced: Any) -> Callable[..., Any] | None:
    """The function that ``jax.jit(f).trace(...)`` has traced, by NumPy; None where bits differ."""
    closed = traced.jaxpr
    if any(getattr(v.aval, "weak_type", False) for v in closed.jaxpr.outvars):
        return None
    try:
        run = _function(closed.jaxpr, closed.consts)
    except _NotExact:
        return None
    kinds = [np.dtype(v.aval.dtype) for v in closed.jaxpr.invars]
    to_device = [jax_core.copier(v.aval) for v in closed.jaxpr.outvars]
    tree = traced.out_tree

    def call(*args: Any) -> Any:
        with _flushing(), np.errstate(all="ignore"):
            found = run([_host(a, kind) for a, kind in zip(args, kinds, strict=True)])
        return jax.tree.unflatten(tree, [put(x) for put, x in zip(to_device, found, strict=True)])

    return call


def is_here() -> bool:
    """Whether arrays of JAX's default platform are NumPy's, and nobody debugs JAX's programs."""
    debugs = any(getattr(jax.config, name, False) for name in _DEBUGGING)
    return jax.default_backend() == "cpu" and not debugs


def takes(args: Sequence[Any]) -> bool:
    """Whether the arrays of a call lie where new ones are put."""
    return not any(isinstance(a, jax.Array) and (a.committed or _devices(a) > 1) for a in args)


def _devices(array: Any) -> int:
    return getattr(array.sharding, "num_devices", 1)


def _host(value: Any, dtype: np.dtype) -> np.ndarray:
    if isinstance(value, jax.Array):
        return np.asarray(value.block_until_ready())
    return np.asarray(value, dtype)


class _flushing:
    """Denormal floats count for zeros in here, as in programs of XLA on the CPU."""

    def __enter__(self) -> None:
        self.before = bool(_LEAST * _ONE == 0)
        if not self.before:
            torch.set_flush_denormal(True)

    def __exit__(self, *exception: Any) -> None:
        if not self.before:
            torch.set_flush_denormal(False)


def _function(jaxpr: Any, consts: Sequence[Any]) -> Callable[[Sequence[Any]], list[Any]]:
    """A jaxpr as a function of NumPy's arrays: its variables numbered, its equations in order."""
    steps = _Steps()
    inputs = [steps.new() for _ in jaxpr.invars]
    outputs = steps.add(jaxpr, consts, inputs)
    start = [steps.known.get(at) for at in range(steps.count)]

    def run(given: Sequence[Any]) -> list[Any]:
        values = start.copy()
        for at, value in zip(inputs, given, strict=True):
            values[at] = value
        for function, takes, gives in steps.steps:
            results = _several(function(*[values[at] for at in takes]))
            for at, value in zip(gives, results, strict=True):
                values[at] = value
        return [values[at] for at in outputs]

    return run


class _Steps:
    """The equations of a jaxpr, those of the functions that it calls among them.

    Attributes:
      count: how many values there are; each has a number.
      known: those that hang on no input, computed here, once.
      made: by which primitive each was made.
      steps: functions of NumPy's arrays, the numbers that each takes, and those that it gives.
    """

    def __init__(self) -> None:
        self.count = 0
        self.known: dict[int, np.ndarray] = {}
        self.made: dict[int, str] = {}
        self.steps: list[tuple[Callable[..., Any], list[int], list[int]]] = []

    def new(self, value: np.ndarray | None = None) -> int:
        """A number, of what is known if a value is given."""
        if value is not None:
            self.known[self.count] = value
        self.count += 1
        return self.count - 1

    def add(self, jaxpr: Any, consts: Sequence[Any], inputs: Sequence[int]) -> list[int]:
        """Append what a jaxpr does with inputs of these numbers; gives those of its results."""
        at = dict(zip(jaxpr.invars, inputs, strict=True))
        for variable, value in zip(jaxpr.constvars, consts, strict=True):
            at[variable] = self.new(np.asarray(value))

        def of(atom: Any) -> int:
            if isinstance(atom, core.Literal):
                aval: Any = atom.aval
                return self.new(np.asarray(atom.val, aval.dtype))
            return at[atom]

        for eqn in jaxpr.eqns:
            takes, inner = [of(v) for v in eqn.invars], _CALLS.get(eqn.primitive.name)
            if inner is None:
                gives = self._one(eqn, takes)
            else:
                gives = self.add(eqn.params[inner].jaxpr, eqn.params[inner].consts, takes)
            at.update(zip(eqn.outvars, gives, strict=True))
        return [of(v) for v in jaxpr.outvars]

    def _one(self, eqn: Any, takes: list[int]) -> list[int]:
        function = self._serving(eqn, takes)
        if all(at in self.known for at in takes):
            results = _several(function(*(self.known[at] for at in takes)))
            return [self.new(np.asarray(value)) for value in results]
        gives = [self.new() for _ in eqn.outvars]
        self.made |= dict.fromkeys(gives, eqn.primitive.name)
        self.steps.append((function, takes, gives))
        return gives

    def _serving(self, eqn: Any, takes: list[int]) -> Callable[..., Any]:
        made = exact.TABLE.get(eqn.primitive.name)
        function = made(eqn) if made is not None else None
        if function is None:
            raise _NotExact(eqn.primitive.name)
        if function is np.divide:
            return _division(self.known.get(takes[1]), self.made.get(takes[1]))
        return function


def _several(results: Any) -> list[Any]:
    return results if isinstance(results, list) else [results]


def _division(divisor: np.ndarray | None, made: str | None) -> Callable[..., Any]:
    """A division as XLA rewrites it: by an array of constants it multiplies with their inverses."""
    if made in ("sqrt", "broadcast_in_dim") and divisor is None:
        raise _NotExact("div")  # by a root it multiplies with an estimate of the inverse root
    if divisor is None or not divisor.ndim:
        return np.divide
    inverse = divisor.dtype.type(1) / divisor
    return lambda x, _: np.multiply(x, inverse)
