"""Errors of JAX functions that cannot be called: their name, their line, and a remedy."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from torch_jax.core import errors
from torch_jax.memory import dtypes


def name_of(function: Any) -> str:
    """Return a function's name with its file and line, as far as they are known.

    >>> name_of(len)
    'len'
    """
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    code = getattr(getattr(function, "__wrapped__", function), "__code__", None)
    return name if code is None else f"{name} ({code.co_filename}:{code.co_firstlineno})"


def another_device(function: Any, tensor: torch.Tensor) -> RuntimeError:
    """Return the error for a tensor that is not on the device."""
    return RuntimeError(
        "Expected all tensors to be on the same device, but found at least two devices, jax:0 and "
        f"{tensor.device}! The JAX function {name_of(function)} was given a "
        f"{errors.describe(tensor)}: move it with .to('jax')"
    )


def as_array(function: Any, leaf: Any) -> Any:
    """Return a leaf of a result as an array.

    Raises:
      TypeError: the leaf is no array, or PyTorch has no such dtype.
    """
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
