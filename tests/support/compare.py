"""Run the same PyTorch code on the CPU and on device jax and compare everything a user sees."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.support import executors

# XLA and PyTorch sum in different orders; these are a few units in the last place per dtype.
TOLERANCE = {
    torch.float64: 1e-11,
    torch.complex128: 1e-11,
    torch.float32: 2e-5,
    torch.complex64: 2e-5,
    torch.float16: 2e-3,
    torch.bfloat16: 1.6e-2,
}


def to_jax(value: Any) -> Any:
    """Copy every tensor inside ``value`` to device jax, strides and requires_grad kept."""
    if isinstance(value, torch.Tensor):
        return value.detach().to("jax").requires_grad_(value.requires_grad)
    if isinstance(value, list | tuple):
        return type(value)(to_jax(v) for v in value)
    if isinstance(value, dict):
        return {k: to_jax(v) for k, v in value.items()}
    return value


def to_cpu(value: Any) -> Any:
    """A fresh CPU copy of every tensor inside ``value``."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.requires_grad)
    if isinstance(value, list | tuple):
        return type(value)(to_cpu(v) for v in value)
    if isinstance(value, dict):
        return {k: to_cpu(v) for k, v in value.items()}
    return value


def assert_same(actual: Any, expected: Any, strides: bool = True, scale: float = 1.0) -> None:
    """Compare type, dtype, shape, strides and values; ``scale`` widens the dtype's tolerance."""
    if isinstance(expected, torch.Tensor):
        assert actual.device.type == "jax", actual.device
        assert actual.dtype == expected.dtype, (actual.dtype, expected.dtype)
        assert actual.shape == expected.shape, (actual.shape, expected.shape)
        if strides and expected.numel() > 1:
            assert _strides(actual) == _strides(expected), (actual.stride(), expected.stride())
        tolerance = TOLERANCE.get(expected.dtype, 0.0) * scale
        torch.testing.assert_close(
            actual.detach().cpu(), expected.detach(), rtol=tolerance, atol=tolerance, equal_nan=True
        )
    elif isinstance(expected, list | tuple):
        assert len(actual) == len(expected)
        for a, e in zip(actual, expected, strict=True):
            assert_same(a, e, strides, scale)
    elif isinstance(expected, float):
        assert actual == pytest.approx(expected, rel=1e-5, nan_ok=True)
    else:
        assert actual == expected, (actual, expected)


def _strides(tensor: torch.Tensor) -> list[int]:
    return [s for s, n in zip(tensor.stride(), tensor.shape, strict=True) if n > 1]


def check(
    function: Callable[..., Any],
    *args: Any,
    grad: bool | None = None,
    strides: bool = True,
    scale: float = 1.0,
    executor: str = "eager",
    **kwargs: Any,
) -> Any:
    """Call ``function`` on the CPU and on jax; outputs, mutated inputs and gradients must agree.

    ``grad`` defaults to whether any input requires it, ``executor`` is one of
    :mod:`tests.support.executors`. Returns the jax result.
    """
    inputs = to_cpu(args), to_jax(args)
    named = to_cpu(kwargs), to_jax(kwargs)
    expected = function(*inputs[0], **named[0])
    actual = executors.by(executor, function)(*inputs[1], **named[1])
    assert_same(actual, expected, strides, scale)
    assert_same(_tensors(inputs[1]), _tensors(inputs[0]), strides, scale)
    leaves = [
        [t for t in _tensors((i, n)) if t.requires_grad] for i, n in zip(inputs, named, strict=True)
    ]
    outputs = [[t for t in _tensors(o) if t.requires_grad] for o in (expected, actual)]
    if grad is False or not leaves[0] or not outputs[0]:
        return actual
    generator = torch.Generator().manual_seed(0)
    weights = [torch.randn(o.shape, generator=generator).to(o.dtype) for o in outputs[0]]
    cpu_grads = torch.autograd.grad(outputs[0], leaves[0], weights, allow_unused=True)
    jax_grads = torch.autograd.grad(
        outputs[1], leaves[1], [w.to("jax") for w in weights], allow_unused=True
    )
    assert_same(list(jax_grads), list(cpu_grads), strides=False, scale=scale)
    return actual


def check_raises(function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """Both devices must raise, and the same exception type."""
    with pytest.raises(Exception) as expected:
        function(*to_cpu(args), **to_cpu(kwargs))
    with pytest.raises(expected.type):
        function(*to_jax(args), **to_jax(kwargs))


def _tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list | tuple):
        return [t for v in value for t in _tensors(v)]
    return []
