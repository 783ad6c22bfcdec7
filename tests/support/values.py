"""Values that tests compute with; random ones are drawn on the CPU, as a copy compiles nothing."""

from __future__ import annotations

from typing import Any

import torch

DEVICES = ["cpu", "jax"]
INF, NAN = float("inf"), float("nan")
SPECIAL = torch.tensor([0.0, -0.0, 1.0, -1.0, 2.5, -2.5, 0.5, 3.0, INF, -INF, NAN, 1e-30])


def make(
    dtype: torch.dtype, *shape: int, low: int = -4, high: int = 5, grad: bool = False
) -> torch.Tensor:
    """A CPU tensor of any dtype, the same at every call; ``low`` and ``high`` bound integers."""
    generator = torch.Generator().manual_seed(len(shape) + 7)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) > 0.5
    if dtype.is_floating_point or dtype.is_complex:
        wide = torch.complex128 if dtype.is_complex else torch.float64
        x = torch.randn(shape, generator=generator, dtype=wide) * 2
        return x.to(dtype).requires_grad_(grad)
    low = max(low, 0) if dtype == torch.uint8 else low
    return torch.randint(low, high, shape, generator=generator).to(dtype)


def randn(*shape: int, requires_grad: bool = False, **options: Any) -> torch.Tensor:
    """``torch.randn`` on the device, drawn by the CPU's generator."""
    return torch.randn(*shape, **options).to("jax").requires_grad_(requires_grad)


def rand(*shape: int, requires_grad: bool = False, **options: Any) -> torch.Tensor:
    """``torch.rand`` on the device, drawn by the CPU's generator."""
    return torch.rand(*shape, **options).to("jax").requires_grad_(requires_grad)


def ones(*shape: int, **options: Any) -> torch.Tensor:
    """``torch.ones`` made on the device, of three numbers where no shape is given."""
    return torch.ones(*(shape or (3,)), device="jax", **options)
