"""``torch_jax.pallas_op``: kernels of Pallas as operators, with gradients.

With the shapes of its results for ``pl.pallas_call``, a kernel is a JAX function like any other.
This adds a backward pass, which is another function; and on the CPU, for which Pallas has no
compiler, kernels are interpreted.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas

from torch_jax import target
from torch_jax.interop.from_jax import from_jax_function


def pallas_op(
    kernel: Callable[..., Any] | None = None,
    *,
    out_shape: Any,
    backward: Callable[..., Any] | None = None,
    interpret: Any = None,
    **options: Any,
) -> Any:
    """Make an operator of a Pallas kernel; a decorator, too.

    The operator takes tensors on device ``jax``, and named arguments that are static: these go to
    the kernel, and to all functions among the arguments below.

    Args:
      kernel: takes references to its inputs, then to its outputs, as for ``pl.pallas_call``.
      out_shape: of the results: as for ``pl.pallas_call``, or a function of the arguments that
        returns it. Arrays may be given in place of shapes.
      backward: takes the arguments, the results (as tuples) and the gradients of the results, and
        returns the gradient of each argument, None where there is none. It is a function of arrays,
        which calls other kernels by their attribute ``of_arrays``.
      interpret: whether the kernel is interpreted; None: where JAX computes on the CPU.
      options: further arguments of ``pl.pallas_call``, such as ``grid``, ``in_specs`` and
        ``out_specs``; each may be a function of the arguments, too.

    >>> import torch, torch_jax
    >>> def halve(arguments, results, gradient):
    ...     return (gradient * 0.5,)
    >>> @torch_jax.pallas_op(out_shape=lambda x: x, backward=halve)
    ... def half(x_ref, o_ref):
    ...     o_ref[...] = x_ref[...] * 0.5
    >>> x = torch.tensor([2.0, 4.0], device="jax", requires_grad=True)
    >>> y = half(x)
    >>> y.sum().backward()
    >>> y.detach().cpu(), x.grad.cpu()
    (tensor([1., 2.]), tensor([0.5000, 0.5000]))
    """
    if kernel is None:
        return functools.partial(
            pallas_op, out_shape=out_shape, backward=backward, interpret=interpret, **options
        )
    name = getattr(kernel, "__name__", "kernel")

    def call_kernel(*arrays: Any, **static: Any) -> Any:
        made = {key: _of_arguments(value, arrays, static) for key, value in options.items()}
        like = _of_arguments(out_shape, arrays, static)
        shapes = jax.tree.map(lambda array: jax.ShapeDtypeStruct(array.shape, array.dtype), like)
        body = functools.partial(kernel, **static) if static else kernel
        interpreted = target.on_cpu() if interpret is None else interpret
        return pallas.pallas_call(body, out_shape=shapes, interpret=interpreted, **made)(*arrays)

    def of_arrays(*arrays: Any, **static: Any) -> Any:
        def forward(*given: Any) -> tuple[Any, tuple]:
            results = call_kernel(*given, **static)
            return results, (given, results)

        run = jax.custom_vjp(functools.partial(call_kernel, **static))
        run.defvjp(forward, functools.partial(_gradients, name, backward, static))
        return run(*map(jnp.asarray, arrays))

    functools.update_wrapper(of_arrays, kernel)
    operator: Any = from_jax_function(of_arrays)
    operator.of_arrays = of_arrays
    return operator


def _of_arguments(option: Any, arrays: tuple, static: dict[str, Any]) -> Any:
    """Return an option, or the result of a function given for it."""
    return option(*arrays, **static) if callable(option) else option


def _gradients(
    name: str, backward: Callable[..., Any] | None, static: dict, kept: tuple, gradients: Any
) -> tuple:
    """Return the gradients of all arguments, from the function of the user's."""
    arguments, results = kept
    if backward is None:
        raise NotImplementedError(
            f"the Pallas kernel {name} has no backward pass: give one with "
            "torch_jax.pallas_op(..., backward=function), or call it under torch.no_grad()"
        )
    as_tuple = results if isinstance(results, tuple) else (results,)
    if isinstance(results, list):
        as_tuple, gradients = tuple(results), tuple(gradients)
    found = backward(arguments, as_tuple, gradients, **static)
    found = tuple(found) if isinstance(found, tuple | list) else (found,)
    if len(found) != len(arguments):
        raise TypeError(
            f"the backward pass of the Pallas kernel {name} gave {len(found)} gradients for "
            f"{len(arguments)} arguments: give None where there is none"
        )
    return found
