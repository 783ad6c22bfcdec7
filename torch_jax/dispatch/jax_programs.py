"""JAX functions of flat lists of arrays, traced once, and programs derived from them.

A :class:`Program` is a jaxpr. Its derivatives and its batched forms are made from that jaxpr and
not from the Python function, which runs once for arguments of each form: later changes of its
closure have no effect on a backward pass.
"""

from __future__ import annotations

import contextlib
import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from torch_jax._private import jax_core
from torch_jax._private.jaxprs import core, mentions
from torch_jax.core.x64 import x64_as

_numbers = itertools.count()
_programs: weakref.WeakValueDictionary[int, Program] = weakref.WeakValueDictionary()

# JAX's dtypes where its 64-bit types are off.
NARROW = {
    np.dtype(np.int64): np.dtype(np.int32),
    np.dtype(np.uint64): np.dtype(np.uint32),
    np.dtype(np.float64): np.dtype(np.float32),
    np.dtype(np.complex128): np.dtype(np.complex64),
}


def numbered(number: int) -> Program:
    """Return the program of a number, by which an operator names it."""
    if (program := _programs.get(number)) is None:
        raise RuntimeError(
            f"torch_jax::call_jax: there is no program {number} in this process: a graph that "
            "calls JAX functions runs in the process that has made it, as long as the graph lives"
        )
    return program


def trace(function: Callable[..., Any], forms: Sequence[Any], wide: bool, name: str) -> Program:
    """Return the program of a function; unless ``wide``, it sees 64-bit arguments as 32-bit."""
    dtypes = [np.dtype(form.dtype) for form in forms]
    seen = [dtype if wide else NARROW.get(dtype, dtype) for dtype in dtypes]
    given = [jax.ShapeDtypeStruct(f.shape, d) for f, d in zip(forms, seen, strict=True)]
    closed = _jaxpr_of(function, given, wide)
    for value in closed.consts:
        if isinstance(value, jax.core.Tracer):
            raise jax.errors.UnexpectedTracerError(f"{name} reads {value} of another function")
    return Program(closed, tuple(forms), wide, name)


def _jaxpr_of(function: Callable[..., Any], forms: Sequence[Any], wide: bool) -> Any:
    """Return the jaxpr of a function of a user's."""
    with x64_as(wide):
        return jax.make_jaxpr(function)(*forms)


class Program:
    """A jaxpr, a number for it, and programs derived from it."""

    def __init__(self, closed: Any, forms: tuple[Any, ...], wide: bool, name: str):
        """Take the jaxpr, and the forms of its arguments as PyTorch has them."""
        self.closed, self.forms, self.wide, self.name = closed, forms, wide, name
        self.results = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in closed.out_avals]
        inexact = [jnp.issubdtype(r.dtype, jnp.inexact) for r in self.results]
        # which results have gradients
        self.differentiable = [i for i, has_gradient in enumerate(inexact) if has_gradient]
        self.kernel: Any = None  # runs it as an operator; made at its first call
        self.check: Callable[[list[Any]], Any] | None = None  # as of a ``Lowering``
        self.number = next(_numbers)
        self._run = core.jaxpr_as_fun(closed)
        self._derived: dict[Any, Any] = {}
        _programs[self.number] = self

    def __call__(self, arrays: Sequence[Any]) -> list[Any]:
        """Return the results, of arguments as PyTorch has them."""
        pairs = zip(map(jnp.asarray, arrays), self.closed.in_avals, strict=True)
        seen = [jax.lax.convert_element_type(array, aval.dtype) for array, aval in pairs]
        with x64_as(self.wide):
            results = self._run(*seen)
        return [  # a result that is a Python number is no array yet
            r if isinstance(r, jax.Array) else np.asarray(r, form.dtype)
            for r, form in zip(results, self.results, strict=True)
        ]

    def narrowed(self) -> list[int]:
        """Return the places of integer arguments that the jaxpr takes with fewer bits."""
        pairs = zip(self.forms, self.closed.in_avals, strict=True)
        return [i for i, (f, v) in enumerate(pairs) if f.dtype != v.dtype and f.dtype.kind in "iu"]

    def reads(self, at: int) -> bool:
        """Return whether a result depends on an argument."""
        outputs = range(len(self.results))
        return self._once(("reads", at), lambda: jax_core.with_outputs(self.closed, outputs)[1][at])

    def forward(self, wanted: tuple[int, ...]) -> Forward | None:
        """Return a pass for gradients of ``wanted``; None where a residual cannot be a tensor."""
        found = self._once(("forward", wanted), lambda: Forward(self, wanted))
        return found if found.program is not None else None

    def pullback(self, wanted: tuple[int, ...], present: tuple[int, ...]) -> Program:
        """Return the map from arguments and gradients to those of ``wanted``, computed again."""

        def pullback(*arrays: Any) -> list[Any]:
            given = arrays[: len(self.forms)]
            some = [given[at] for at in wanted]
            _, back, _ = jax.vjp(self._of(wanted, given), *some, has_aux=True)
            return gradients(back, self._cotangents(present, arrays[len(self.forms) :]))

        forms = (*self.forms, *(self.results[at] for at in present))
        return self._derive(("pullback", wanted, present), pullback, forms)

    def pushforward(self, moved: tuple[int, ...]) -> Program:
        """Return the map from arguments and tangents of ``moved`` to those of the results."""

        def pushforward(*arrays: Any) -> list[Any]:
            given, tangents = arrays[: len(self.forms)], arrays[len(self.forms) :]
            primals = [given[at] for at in moved]
            return jax.jvp(self._of(moved, given), primals, list(tangents), has_aux=True)[1]

        forms = (*self.forms, *(self.forms[at] for at in moved))
        return self._derive(("pushforward", moved), pushforward, forms)

    def batched(self, dims: tuple[int | None, ...], size: int) -> Program:
        """Return the program over a batch in these dims of the arguments, first in the results."""
        pairs = zip(self.forms, dims, strict=True)
        forms = tuple(form if dim is None else _longer(form, dim, size) for form, dim in pairs)

        def make() -> Program:
            run = jax.vmap(self._run, in_axes=dims, axis_size=size)
            program = trace(run, forms, self.wide, f"batched {self.name}")
            program.check = self.check and _of_all(self.check, dims, size)
            return program

        return self._once(("batched", dims, size), make)

    def _of(self, wanted: tuple[int, ...], arrays: Sequence[Any]) -> Callable[..., Any]:
        """Return differentiable results as a function of some arguments, and all as its aux."""

        def of_some(*some: Any) -> tuple[list[Any], list[Any]]:
            given = list(arrays)
            for at, array in zip(wanted, some, strict=True):
                given[at] = array
            results = self._run(*given)
            return [results[at] for at in self.differentiable], results

        return of_some

    def _cotangents(self, present: tuple[int, ...], given: Sequence[Any]) -> list[Any]:
        """Return JAX's cotangents for PyTorch's gradients, of which some are missing."""
        found = dict(zip(present, given, strict=True))
        results = self.results
        return [
            jnp.conj(found[at]) if at in found else jnp.zeros(results[at].shape, results[at].dtype)
            for at in self.differentiable
        ]

    def _derive(self, key: Any, function: Callable[..., Any], forms: tuple[Any, ...]) -> Program:
        name = f"{key[0]} of {self.name}"
        return self._once(key, lambda: trace(function, forms, self.wide, name))

    def _once(self, key: Any, make: Callable[[], Any]) -> Any:
        if key not in self._derived:
            self._derived[key] = make()
        return self._derived[key]


class _Source(NamedTuple):
    """The origin of a value that a backward pass needs."""

    kind: str  # "argument", "output" of the forward program, or "constant"
    at: Any


class Forward:
    """A forward pass that also returns the values for its backward pass: residuals of ``jax.vjp``.

    Its program gives the results, then those residuals that are neither arguments nor results.
    """

    def __init__(self, of: Program, wanted: tuple[int, ...]):
        self.of, self.wanted = of, wanted
        back: list[Any] = []

        def forward(*arrays: Any) -> list[Any]:
            primals = [arrays[at] for at in wanted]
            _, pull, results = jax.vjp(of._of(wanted, arrays), *primals, has_aux=True)
            residuals, structure = jax.tree_util.tree_flatten(pull)
            back[:] = [structure]
            return [*results, *residuals]

        closed = _jaxpr_of(forward, of.closed.in_avals, of.wide)
        (self._structure,) = back
        self._sources, kept = _sources(closed, len(of.results))
        self.program: Any = None  # where a residual cannot be a tensor
        kinds, apart = [closed.out_avals[at].dtype for at in kept], jax.dtypes.extended
        if not any(jnp.issubdtype(one, apart) or one == jax.dtypes.float0 for one in kinds):
            part, _ = jax_core.with_outputs(closed, kept, all_inputs=True)
            self.program = Program(part, of.forms, of.wide, of.name)
        # which arguments and outputs the backward pass needs
        needed = dict.fromkeys(s for s in self._sources if s.kind != "constant")
        self.arguments = tuple(s.at for s in needed if s.kind == "argument")
        self.outputs = tuple(s.at for s in needed if s.kind == "output")
        if self.program is not None and mentions(of.closed.jaxpr, "custom_"):
            # rules of the user's run now, and read the same values as the function; the backward
            # pass traces them again, and raises their errors
            with contextlib.suppress(Exception):
                self.backward(tuple(of.differentiable), wanted)

    def backward(self, present: tuple[int, ...], needed: tuple[int, ...]) -> Program:
        """Return the map from ``arguments``, ``outputs`` and gradients to ``needed`` gradients."""
        of, count = self.of, len(self.arguments) + len(self.outputs)

        def backward(*arrays: Any) -> list[Any]:
            places = [("argument", i) for i in self.arguments]
            places += [("output", i) for i in self.outputs]
            found = dict(zip(places, arrays[:count], strict=True))
            values = [s.at if s.kind == "constant" else found[s] for s in self._sources]
            back = jax.tree_util.tree_unflatten(self._structure, values)
            given = gradients(back, of._cotangents(present, arrays[count:]))
            return [given[self.wanted.index(at)] for at in needed]

        forms = [of.forms[at] for at in self.arguments]
        forms += [self.program.results[at] for at in self.outputs]
        forms += [of.results[at] for at in present]
        return self.program._derive(("gradient", present, needed), backward, tuple(forms))


def _sources(closed: Any, results: int) -> tuple[list[_Source], list[int]]:
    """Return the origin of each residual, and the outputs that the program must have for them."""
    jaxpr = closed.jaxpr
    arguments: dict[Any, _Source] = {v: _Source("argument", i) for i, v in enumerate(jaxpr.invars)}
    constants = dict(zip(jaxpr.constvars, closed.consts, strict=True))
    places: dict[Any, _Source] = {}
    kept = list(range(results))
    for at, var in enumerate(jaxpr.outvars):
        if at < results:
            if not isinstance(var, core.Literal):
                places.setdefault(var, _Source("output", at))
        elif isinstance(var, core.Literal):
            aval: Any = var.aval
            places[id(var)] = _Source("constant", np.asarray(var.val, aval.dtype))
        elif var in arguments:
            places[var] = arguments[var]
        elif var in constants:
            places[var] = _Source("constant", constants[var])
        elif var not in places:
            places[var] = _Source("output", len(kept))
            kept.append(at)
    residuals = jaxpr.outvars[results:]
    return [places[id(v) if isinstance(v, core.Literal) else v] for v in residuals], kept


def gradients(back: Callable[..., Any], cotangents: list[Any]) -> list[Any]:
    """Return PyTorch's gradients: of a complex value the conjugate of JAX's cotangent."""
    return [jnp.conj(gradient) for gradient in back(cotangents)]


def _of_all(check: Callable[..., Any], dims: tuple, size: int) -> Callable[..., Any]:
    """Return a check of one example as a check of a batch, passed where all examples pass."""

    def of_all(tensors: list[Any]) -> Any:
        error: list[Any] = []

        def of_one(*arrays: Any) -> Any:
            ok, *error[:] = check(list(arrays)) or (None,)
            return ok

        ok = jax.vmap(of_one, in_axes=dims, axis_size=size)(*tensors)
        return None if ok is None else (ok.all(), *error)

    return of_all


def _longer(form: Any, dim: int, size: int) -> jax.ShapeDtypeStruct:
    shape = list(form.shape)
    shape.insert(dim if dim >= 0 else dim + len(shape) + 1, size)
    return jax.ShapeDtypeStruct(tuple(shape), form.dtype)
