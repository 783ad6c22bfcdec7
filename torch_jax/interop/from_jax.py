"""``torch_jax.call_jax`` and ``torch_jax.from_jax_function``: JAX functions as PyTorch's.

Dynamo traces through this file: in its graphs a call is one node, the operator of the program.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any, TypeVar, overload

import torch
from torch.utils import _pytree as pytree

from torch_jax.interop import jax_calls, jax_calls_in_graphs

F = TypeVar("F", bound=Callable[..., Any])


def call_jax(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a JAX function with tensors on device ``jax``; gradients flow through it.

    Tensors arrive as ``jax.Array``s, anywhere in the arguments, and the arrays of the result are
    new tensors. ``jax.Array``s and NumPy's arrays among the arguments are inputs, too; random keys
    arrive as keys, ``torch.dtype``s as NumPy's. Others are static: the function is compiled for
    each value. Numbers among the results become tensors; ``None`` stays.

    Gradients are those of ``jax.vjp``, with ``jax.custom_vjp`` and ``jax.custom_jvp``, to any
    order, and forwards, too. The function runs when it is traced, and must be pure. It is traced
    again when a value that it reads has changed, such as a variable of its closure or a global.

    JAX's 64-bit types are on inside if the user has them on, or where a tensor is float64 or
    complex128. Else the function sees int64 as int32, as with ``jnp.asarray``, and an integer
    that does not fit raises ``OverflowError``.

    Args:
      function: of ``jax.Array``s.
      args: its arguments.
      kwargs: its named arguments.

    Raises:
      TypeError: an argument can be neither an array nor static, or a result is no array.
      RuntimeError: a tensor is not on device jax, or the function is not pure.

    >>> import jax.numpy as jnp, torch_jax
    >>> x = torch.tensor([1.0, 2.0], device="jax", requires_grad=True)
    >>> y = torch_jax.call_jax(lambda x, n: {"power": jnp.power(x, n)}, x, 3)
    >>> y["power"].sum().backward()
    >>> x.grad.cpu()
    tensor([ 3., 12.])
    """
    return _call(function, None, args, kwargs)


@overload
def from_jax_function(function: F, /) -> F: ...
@overload
def from_jax_function(*, x64: bool | None = ...) -> Callable[[F], F]: ...
def from_jax_function(function: Any = None, /, *, x64: bool | None = None) -> Any:
    """Make a PyTorch function of a JAX function; a decorator.

    The function is called as by :func:`call_jax`.

    Args:
      function: of ``jax.Array``s.
      x64: whether JAX's 64-bit types are on inside; None: as in :func:`call_jax`.

    >>> import jax, torch_jax
    >>> @torch_jax.from_jax_function
    ... def attend(q, k):
    ...     return jax.nn.softmax(q @ k.T)
    >>> attend(torch.ones(1, 2, device="jax"), torch.zeros(2, 2, device="jax")).cpu()
    tensor([[0.5000, 0.5000]])
    """
    if function is None:
        return functools.partial(from_jax_function, x64=x64)
    if not callable(function):
        raise TypeError(f"from_jax_function takes a function, not {type(function).__name__}")

    def call(*args: Any, **kwargs: Any) -> Any:
        return _call(function, x64, args, kwargs)

    return functools.update_wrapper(call, function)


def _call(function: Any, wide: bool | None, args: tuple, kwargs: dict[str, Any]) -> Any:
    found = None
    if torch.compiler.is_dynamo_compiling():
        found = _program_for(function, wide, pytree.tree_map(_describe, (args, kwargs)))
    if found is None:
        return jax_calls.call(function, wide, args, kwargs)  # which breaks a graph
    # Dynamo traces this: the operator is called with the number of a program, a constant here
    number, order, result = found
    leaves = pytree.tree_leaves((args, kwargs))
    tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    return _filled(result, torch.ops.torch_jax.call_jax([tensors[at] for at in order], number))


def _describe(leaf: Any) -> Any:
    """Return a leaf as a constant: the form of a tensor, the value of a number that may vary."""
    if isinstance(leaf, torch.Tensor):
        sizes = tuple([operator.index(size) for size in leaf.shape])
        return jax_calls_in_graphs.TENSOR, sizes, leaf.dtype, leaf.device.type
    if type(leaf) is float:
        return leaf.__float__()  # which Dynamo takes for the value, unlike float(leaf)
    return operator.index(leaf) if type(leaf) is int else leaf


def _program_for(function: Any, wide: bool | None, shown: Any) -> Any:
    return jax_calls_in_graphs.program_for(function, wide, shown)


_program_for._dynamo_marked_constant = True  # type: ignore[attr-defined]


def _filled(result: Any, tensors: Any) -> Any:
    """Return the tree that a description means, with the tensors of the numbers in it."""
    if result is None:
        return None
    if isinstance(result, int):
        return tensors[result]
    kind, keys, values = result
    filled = [_filled(value, tensors) for value in values]
    if kind == "dict":
        return dict(zip(keys, filled, strict=True))
    return filled if kind == "list" else tuple(filled)
