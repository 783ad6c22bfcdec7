"""Small functions of arrays, computed by NumPy with no compilation, where that changes no bit.

To compile an operator for one more shape takes some 20 ms, nearly all of it JAX's and XLA's fixed
costs. A first answer of a model meets hundreds of operators and shapes, many of them once. Where
JAX computes on the CPU its arrays are NumPy's, uncopied; so an operator all of whose primitives
give the same bits in NumPy (:mod:`torch_jax.compiler.exact`) need not be compiled to be called a
few times.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
import torch
from jax.extend import core

from torch_jax._private import jax_core
from torch_jax.compiler import exact

_CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "closed_call": "call_jaxpr",
}
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
    debugs = jax.config.jax_debug_nans or jax.config.jax_debug_infs or jax.config.jax_disable_jit
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
    number = itertools.count()
    places: dict[Any, int] = {}
    fixed: list[tuple[int, Any]] = []

    def place(atom: Any) -> int:
        if isinstance(atom, core.Literal):
            at = next(number)
            fixed.append((at, exact.literal(atom)))
            return at
        if atom not in places:
            places[atom] = next(number)
        return places[atom]

    for variable, value in zip(jaxpr.constvars, consts, strict=True):
        fixed.append((place(variable), np.asarray(value)))
    inputs = [place(v) for v in jaxpr.invars]
    steps = [
        (_step(e), [place(v) for v in e.invars], [place(v) for v in e.outvars]) for e in jaxpr.eqns
    ]
    outputs = [place(v) for v in jaxpr.outvars]
    count = next(number)

    def run(given: Sequence[Any]) -> list[Any]:
        values: list[Any] = [None] * count
        for at, value in fixed:
            values[at] = value
        for at, value in zip(inputs, given, strict=True):
            values[at] = value
        for function, takes, gives in steps:
            results = function(*[values[at] for at in takes])
            if len(gives) == 1 and not isinstance(results, list):
                values[gives[0]] = results
            else:
                for at, value in zip(gives, results, strict=True):
                    values[at] = value
        return [values[at] for at in outputs]

    return run


def _step(eqn: Any) -> Callable[..., Any]:
    inner = _CALLS.get(eqn.primitive.name)
    if inner is not None:
        closed = eqn.params[inner]
        run = _function(closed.jaxpr, closed.consts)
        return lambda *given: run(given)
    made = exact.TABLE.get(eqn.primitive.name)
    function = made(eqn) if made is not None else None
    if function is None:
        raise _NotExact(eqn.primitive.name)
    return function
