"""Helpers for tests of ``torch_jax.jit``: the same calls, plain and compiled."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable
from typing import Any

import torch

import torch_jax

Case = tuple[Callable[..., Any], list[Callable[[], Any]]]


class Routes(dict):
    """Ways by which a function reads a value: each gives the function, and changes of the value."""

    def __call__(self, case: Callable[[], Case]) -> Callable[[], Case]:
        self[case.__name__] = case
        return case


def sets(owner: Any, name: str, *values: Any) -> list[Callable[[], Any]]:
    """Changes that set an attribute, one value after the other."""
    return [functools.partial(setattr, owner, name, value) for value in values]


def puts(owner: Any, key: Any, *values: Any) -> list[Callable[[], Any]]:
    """Changes that set an element."""
    return [functools.partial(operator.setitem, owner, key, value) for value in values]


def results(function: Callable, changes: list[Callable[[], Any]]) -> list[torch.Tensor]:
    """What two calls give at first, and again after each change."""
    x = torch.arange(1.0, 4.0, device="jax")
    found = [_value(function(x)), _value(function(x))]
    for change in changes:
        change()
        found += [_value(function(x)), _value(function(x))]
    return found


def _value(result: torch.Tensor) -> torch.Tensor:
    return result.detach().cpu().clone()


def assert_alike(actual: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    """All calls gave the same, but for rounding."""
    for index, (ours, theirs) in enumerate(zip(actual, expected, strict=True)):
        torch.testing.assert_close(
            ours, theirs, rtol=1e-4, atol=1e-5, equal_nan=True,
            msg=lambda text, index=index: f"call {index}: {text}",
        )  # fmt: skip


def check_changes(case: Callable[[], Case]) -> Any:
    """A compiled function sees every change that the plain one sees; the compiled function."""
    torch.manual_seed(0)
    function, changes = case()
    expected = results(function, changes)
    for before, after in zip(expected[1::2], expected[2::2], strict=False):
        assert not _equal(before, after)  # or the test would show nothing
    torch.manual_seed(0)
    function, changes = case()
    compiled = torch_jax.jit(function)
    assert_alike(results(compiled, changes), expected)
    return compiled


def _equal(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one, other)
