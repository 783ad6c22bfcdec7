"""Names of functions and tensors in errors: those of the user's own code."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import torch

from torch_jax.core import errors


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
    try:
        return id(tensor.untyped_storage())
    except (NotImplementedError, RuntimeError):
        return None


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
