"""Helpers of programs: their registration, tensors, and namespaces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

Compile = Callable[[Any], Any]
Program = Callable[[Compile], Iterator[Any]]
PROGRAMS: dict[str, Program] = {}
CALLS = 6  # past what the first calls alone do, unless a program says more


def program(function: Program) -> Program:
    """Enter a program under the name of its file and its own."""
    enter(function.__name__, function, function)
    return function


def calls(name: str, function: Callable[..., Any], arguments: Callable[[], Iterable]) -> None:
    """Enter a program that calls a function, and shows results, errors and arguments."""

    def shown(compile: Compile) -> Iterator[Any]:
        f = compile(function)
        for args in arguments():
            yield attempt(f, *args), args

    enter(name, shown, function)


def enter(name: str, program: Program, of: Callable[..., Any]) -> None:
    """Enter a program under a name, and that of the file where a function of it is written."""
    name = f"{of.__module__.rpartition('.')[2]}.{name}"
    assert name not in PROGRAMS, name
    PROGRAMS[name] = program


def t(*values: Any, grad: bool = False, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor on the device, for which nothing is compiled; a number n is ``[n, n+1, n+2]``."""
    numbers = [values[0], values[0] + 1, values[0] + 2] if len(values) == 1 else list(values)
    return torch.tensor(numbers, dtype=dtype).to("jax").requires_grad_(grad)


def m(start: float = 0.0, grad: bool = False) -> torch.Tensor:
    """A matrix of two rows and three columns on the device."""
    return (torch.arange(6.0).view(2, 3) + start).to("jax").requires_grad_(grad)


def linear() -> torch.nn.Linear:
    """A layer on the device, its weights drawn on the CPU."""
    return torch.nn.Linear(3, 3).to("jax")


class Bag:
    """A namespace: an object of a plain class, with the attributes that it is given."""

    def __init__(self, **attributes: Any):
        vars(self).update(attributes)


def attempt(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return the result of a call, or the type of its error."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        return type(error)
