"""Derivatives stated by lowerings, where JAX's own would differ from PyTorch's.

JAX differentiates the primitives of a lowering. Where the function has a kink or its
formula a pole, or where PyTorch's gradient is another one by convention, the lowering states the
derivative. The program of the lowering itself does not change.

All of them are derivatives in forward mode, which JAX transposes for reverse mode.

>>> @differentiated_as(lambda x: jnp.where(x > 0, x, 0))
... def relu(x):
...     return jnp.maximum(x, 0)
>>> float(jax.grad(relu)(0.0))
0.0
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from torch_jax.ops.promotion import opmath

Function = Callable[..., Any]


def differentiated_as(twin: Function) -> Callable[[Function], Function]:
    """Mark a function whose derivative is that of ``twin``, which takes the same arguments."""

    def rule(of: Function, primals: tuple, tangents: tuple) -> Any:
        return jax.jvp(of(twin), primals, tangents)[1]

    return _stated(rule)


def slope(*slopes: Function) -> Callable[[Function], Function]:
    """Mark an elementwise function by its slopes, one for each of its first operands.

    A slope has the function's arguments: PyTorch's kernel ``<name>_backward`` gives it for a
    gradient of 1. By operands without a slope there is no derivative.
    """

    def change(of: Function, primals: tuple, tangents: tuple) -> Any:
        changes = [
            jax.tree.map(functools.partial(jnp.multiply, tangent), of(one)(*primals))
            for one, tangent in zip(slopes, tangents, strict=False)
        ]
        return functools.reduce(functools.partial(jax.tree.map, jnp.add), changes)

    return _stated(change)


def _stated(rule: Callable[[Function, tuple, tuple], Any]) -> Callable[[Function], Function]:
    """Mark a function with a rule from arrays and their changes to the change of the result.

    The rule is given ``of``, which makes of a function with the arguments of the marked one a
    function of the arrays among them. A function must not read other tracers.
    """

    def mark(function: Function) -> Function:
        @functools.wraps(function)
        def marked(*args: Any, **kwargs: Any) -> Any:
            leaves, tree = jax.tree.flatten((args, kwargs))
            places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, jax.Array)]
            if not any(jnp.issubdtype(leaves[i].dtype, jnp.inexact) for i in places):
                return function(*args, **kwargs)

            def of(function: Function) -> Function:
                def of_arrays(*arrays: Any) -> Any:
                    given = dict(zip(places, arrays, strict=True))
                    filled = [given.get(i, leaf) for i, leaf in enumerate(leaves)]
                    args, kwargs = jax.tree.unflatten(tree, filled)
                    return function(*args, **kwargs)

                return of_arrays

            run = jax.custom_jvp(of(function))

            @run.defjvp
            def derivative(primals: tuple, tangents: tuple) -> tuple[Any, Any]:
                result = run(*primals)
                return result, jax.tree.map(_fitting, rule(of, primals, tangents), result)

            return run(*(leaves[i] for i in places))

        return marked

    return mark


def _fitting(change: Any, result: Any) -> Any:
    """Return a change in the dtype and shape of the result that it changes."""
    dtype, shape = jnp.result_type(result), jnp.shape(result)
    if not jnp.issubdtype(dtype, jnp.inexact):
        return np.zeros(shape, jax.dtypes.float0)
    return jnp.broadcast_to(change, shape).astype(dtype)


def transposed(function: Function, grad: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Return the gradient of a linear function's operand, of ``shape``; half types are widened."""
    grad = grad.astype(opmath(grad.dtype))
    return jax.linear_transpose(function, jax.ShapeDtypeStruct(shape, grad.dtype))(grad)[0]


@differentiated_as(lambda x: x * jnp.sign(x))
def magnitude(x: jax.Array) -> jax.Array:
    """Return the absolute value of reals, whose slope at 0 is 0."""
    return jnp.abs(x)


@differentiated_as(lambda x: x)
def as_it_is(x: jax.Array) -> jax.Array:
    """Return floats as they are, but hidden from XLA's algebra.

    XLA makes ``a / (b * c)`` of ``a / b / c``, where the product may be 0 or infinite though no
    quotient is, and ``p * log(abs(x))`` of ``log(x**p)``, which is NaN for a negative power.
    """
    infinity = jnp.asarray(np.inf, x.dtype)
    return jax.lax.clamp(-infinity, x, infinity)


@differentiated_as(lambda x: jnp.where(x == 0, 0, jnp.sqrt(jnp.where(x == 0, 1, x))))
def root(x: jax.Array) -> jax.Array:
    """Return the square root, whose slope at 0 is 0: that of a norm or a deviation."""
    return jnp.sqrt(x)


@differentiated_as(lambda x, p: jnp.where(x == 0, 0, jnp.where(x == 0, 1, x) ** p))
def power_of_size(x: jax.Array, p: float) -> jax.Array:
    """Return a power of nonnegative numbers, whose slope at 0 is 0."""
    return x**p
