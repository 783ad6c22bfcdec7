"""``torchax.interop``: values and functions of JAX as PyTorch's, and the other way round.

``torch_view`` and ``jax_view`` convert values as ``torch_jax.from_jax`` and ``to_jax`` do, and
functions as ``from_jax_function`` and ``to_jax_function`` do, with two differences. A JAX function
is called directly, not compiled, and gradients of PyTorch's do not flow through it:
:func:`j2t_autograd` lets them. A function under :func:`jax_jit` draws its random numbers from a
key that every call passes.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import torch
from torch import nn

from torch_jax.compat.ax import draws
from torch_jax.compat.ax.environment import array_of, is_narrow, tensor_of
from torch_jax.core import trees
from torch_jax.core.active import ACTIVE
from torch_jax.core.x64 import x64_as
from torch_jax.graphs.interpreter import prepare
from torch_jax.interop.from_jax import from_jax_function
from torch_jax.memory import dtypes


def torch_view(value: Any) -> Any:
    """Return values of JAX's as PyTorch's, in trees: arrays, dtypes, functions of arrays."""
    return trees.map(torch_view_elem, value)


def jax_view(value: Any) -> Any:
    """Return values of PyTorch's as JAX's, in trees: tensors, dtypes, functions of tensors."""
    return trees.map(jax_view_elem, value)


def torch_view_elem(value: Any) -> Any:
    """Return a value of JAX's as PyTorch's, if it is an array, dtype or function."""
    if isinstance(value, jax.Array):
        return tensor_of(value)
    if isinstance(value, np.dtype):
        return dtypes.to_torch(value)
    return functools.partial(call_jax, value) if _is_function(value) else value


def jax_view_elem(value: Any) -> Any:
    """Return a value of PyTorch's as JAX's, if it is a tensor, dtype or function."""
    if isinstance(value, torch.Tensor):
        return array_of(value)
    if isinstance(value, torch.dtype):
        return dtypes.to_jax(value)
    return of_arrays(value) if _is_function(value) else value


def _is_function(value: Any) -> bool:
    return callable(value) and not isinstance(value, nn.Module)


# --- functions ------------------------------------------------------------------------------------

# Functions that call another many times and trace it once: a key from outside would never change.
_LOOPS = (jax.lax.scan, jax.lax.fori_loop, jax.lax.while_loop, jax.lax.map)


def call_jax(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a JAX function with tensors as arrays, and return its arrays as tensors.

    No gradient of PyTorch's flows through it: for gradients use :func:`j2t_autograd` or
    ``torch_jax.call_jax``.
    """
    view = _view_in_loop if function in _LOOPS else jax_view_elem
    with x64_as(not is_narrow()):
        args, kwargs = trees.map(view, (args, kwargs))
        return torch_view(function(*args, **kwargs))


def _view_in_loop(value: Any) -> Any:
    return of_arrays(value, lambda: None) if _is_function(value) else jax_view_elem(value)


def call_torch(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a function of tensors with arrays, and return its tensors as arrays.

    JAX may differentiate, map and compile it: ``detach`` and ``no_grad`` stop its gradients.
    """
    return of_arrays(function)(*args, **kwargs)


def of_arrays(function: Any, words: Callable[[], Any] = draws.next_words) -> Callable[..., Any]:
    """Return a function of tensors as one of arrays, which draws from the result of ``words``."""
    prepare()

    def call(*args: Any, **kwargs: Any) -> Any:
        narrow = is_narrow()
        with draws.program(words(), function):
            args, kwargs = trees.map(functools.partial(_argument, narrow), (args, kwargs))
            return jax_view(function(*args, **kwargs))

    return functools.update_wrapper(call, function, updated=())


def _argument(narrow: bool, value: Any) -> Any:
    """Return an argument as PyTorch's; JAX's integers become int64, PyTorch's type of indices."""
    value = torch_view_elem(value)
    if not isinstance(value, torch.Tensor):
        return value
    value = value.long() if narrow and value.dtype == torch.int32 else value
    return ACTIVE.tracer.mode.adopt(value)


# --- under jax.jit --------------------------------------------------------------------------------


def jitted(function: Callable[..., Any], options: dict[str, Any]) -> Callable[..., Any]:
    """Return a function of tensors under ``jax.jit``, which gets the key words of each call.

    They come before the other arguments.
    """

    prepare()

    def program(words: Any, *args: Any, **kwargs: Any) -> Any:
        return of_arrays(function, lambda: words)(*args, **kwargs)

    functools.update_wrapper(program, function, updated=())
    program.__signature__ = _after_words(function)  # type: ignore[attr-defined]
    compiled = jax.jit(program, **{name: _moved(name, value) for name, value in options.items()})

    def call(*args: Any, **kwargs: Any) -> Any:
        words = draws.next_words()
        return call_jax(compiled, _ZEROS if words is None else words, *args, **kwargs)

    return functools.update_wrapper(call, function, updated=())


_ZEROS = np.zeros(4, np.uint32)


def _after_words(function: Callable[..., Any]) -> inspect.Signature:
    """Return a function's signature with an argument before the others, for ``static_argnames``."""
    words = inspect.Parameter("words", inspect.Parameter.POSITIONAL_ONLY)
    try:
        given = inspect.signature(function)
    except (TypeError, ValueError):
        given = inspect.signature(lambda *args, **kwargs: None)
    return given.replace(parameters=[words, *given.parameters.values()])


def _moved(name: str, value: Any) -> Any:
    """Return an option of ``jax.jit`` for the arguments one place further on."""
    if name.endswith("_argnums"):
        numbers = (value,) if isinstance(value, int) else value or ()
        return tuple(number + 1 if number >= 0 else number for number in numbers)
    if name == "in_shardings" and isinstance(value, tuple | list):
        return (None, *value)
    return value


# --- transformations ------------------------------------------------------------------------------

shard_map = jax.shard_map


def j2t_autograd(function: Callable[..., Any], call_jax: Any = None) -> Callable[..., Any]:
    """Return a JAX function as one of tensors, through which PyTorch's gradients flow."""
    return from_jax_function(function)


def wrap_jax_jit(
    torch_function: Callable[..., Any],
    jax_jit_func: Callable[..., Any] = jax.jit,
    kwargs_for_jax: dict[str, Any] | None = None,
) -> Any:
    """Return a function of tensors under a transformation of JAX's, as a function of tensors."""
    options = dict(kwargs_for_jax or {})
    if jax_jit_func is jax.jit:
        return jitted(torch_function, options)
    return torch_view(jax_jit_func(of_arrays(torch_function), **options))


def jax_jit(
    torch_function: Callable[..., Any],
    kwargs_for_jax_jit: dict[str, Any] | None = None,
    fix_for_buffer_donation: bool = False,
) -> Any:
    """Return a function of tensors under ``jax.jit``: one program, which JAX differentiates.

    Random operators draw other numbers at each call, from PyTorch's generator of the device.
    """
    return wrap_jax_jit(torch_function, jax.jit, kwargs_for_jax_jit)


def jax_shard_map(
    torch_function: Callable[..., Any], kwargs_for_jax_shard_map: dict[str, Any] | None = None
) -> Any:
    """Return a function of tensors under ``jax.shard_map``."""
    return wrap_jax_jit(torch_function, shard_map, kwargs_for_jax_shard_map)


def jax_value_and_grad(
    torch_function: Callable[..., Any], kwargs_for_value_and_grad: dict[str, Any] | None = None
) -> Any:
    """Return a function of tensors under ``jax.value_and_grad``."""
    return wrap_jax_jit(torch_function, jax.value_and_grad, kwargs_for_value_and_grad)


def gradient_checkpoint(
    torch_function: Callable[..., Any], kwargs: dict[str, Any] | None = None
) -> Any:
    """Return a function of tensors under ``jax.checkpoint``."""
    return wrap_jax_jit(torch_function, jax.checkpoint, kwargs)


fori_loop = torch_view(jax.lax.fori_loop)
