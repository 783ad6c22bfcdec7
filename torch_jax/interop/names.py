"""Names of functions and tensors in errors: those of the user's own code; and such errors."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from torch_jax._private import pytorch
from torch_jax.core import errors
from torch_jax.memory import dtypes


def of_function(function: Any) -> str:
    """Return the name of a function or of a module's class.

    >>> of_function(torch.nn.Linear(1, 1))
    'Linear'
    """
    if isinstance(function, torch.nn.Module):
        return type(function).__name__
    return getattr(function, "__qualname__", None) or type(function).__name__


def of_tensor(function: Any, tensor: torch.Tensor) -> str:
    """Return a function's name for a tensor that was no argument of it, and the tensor's shape."""
    shown = errors.describe(tensor)
    wanted = _address(tensor)
    for name, held in _held(function):
        if held is tensor or (wanted is not None and _address(held) == wanted):
            return f"{name!r}, {shown}"
    return f"a tensor from outside, {shown}"


def _address(tensor: torch.Tensor) -> int | None:
    """Return the identity of a tensor's memory, which all its views share."""
    return id(tensor.untyped_storage()) if pytorch.has_storage(tensor) else None


def _held(function: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors that a function can reach without arguments, by name."""
    owner = getattr(function, "__self__", function)
    if isinstance(owner, torch.nn.Module):
        yield from in_module("", owner)
    function = inspect.unwrap(function) if callable(function) else function
    function = getattr(function, "__func__", function)
    if not inspect.isfunction(function):
        return
    variables = inspect.getclosurevars(function)
    for name, value in {**variables.globals, **variables.nonlocals}.items():
        if isinstance(value, torch.Tensor):
            yield name, value
        elif isinstance(value, torch.nn.Module):
            yield from in_module(f"{name}.", value)


def in_module(prefix: str, module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors of a module, plain attributes too, under each of their names."""
    for path, part in module.named_modules(remove_duplicate=False):
        for name, value in (vars(part) | part._parameters | part._buffers).items():
            if isinstance(value, torch.Tensor):
                yield f"{prefix}{path}{'.' if path else ''}{name}", value


def name_of(function: Any) -> str:
    """Return a function's name with its file and line, as far as they are known.

    >>> name_of(len)
    'len'
    """
    while isinstance(function, functools.partial):
        function = function.func
    name = of_function(function)
    code = getattr(getattr(function, "__wrapped__", function), "__code__", None)
    return name if code is None else f"{name} ({code.co_filename}:{code.co_firstlineno})"


def as_array(function: Any, leaf: Any) -> Any:
    """Return a leaf of a result as an array of a dtype that PyTorch has."""
    try:
        is_number = isinstance(leaf, bool | int | float | complex)
        if not (is_number or isinstance(leaf, jax.Array | np.ndarray | np.generic)):
            raise TypeError(f"{leaf!r}, a {type(leaf).__name__}")
        if not is_number and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            raise TypeError(
                "a random key: return jax.random.key_data(key), a tensor that "
                "jax.random.wrap_key_data takes"
            )
        array = jnp.asarray(leaf)
        dtypes.to_torch(array.dtype)
        return array
    except TypeError as error:
        raise TypeError(
            f"the JAX function {name_of(function)} returned what cannot be a tensor: {error}"
        ) from None


@contextlib.contextmanager
def explained(function: Any, tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Add to errors raised inside a function its name, and the tensors that it was called with."""
    try:
        yield
    except jax.errors.UnexpectedTracerError as error:
        raise RuntimeError(
            f"the JAX function {name_of(function)} reads a value of a JAX function that has ended, "
            "through its closure or a global: a value that a traced function has put aside. Pass "
            "values as arguments and results"
        ) from error
    except Exception as error:
        shown = ", ".join(map(errors.describe, tensors))
        error.add_note(f"in the JAX function {name_of(function)}, called with ({shown})")
        raise
