"""Agreement of two devices: PyTorch's own tolerances, and beyond them the true value decides.

Sums taken in another order differ by more than a fixed tolerance where a problem is
ill-conditioned. So where results differ, both are held against the same computation in float64 on
the CPU: jax must then be as near to it as CPU PyTorch is (within :data:`SLACK`). No tolerance is
set for an entry by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.support.arguments import tensors

SLACK = 4.0  # jax's error may be so many times the CPU's

_WIDE = {torch.complex64: torch.complex128, torch.complex128: torch.complex128}


def wide(value: Any) -> Any:
    """``value`` with every floating tensor in double precision, leaves kept."""
    if isinstance(value, torch.Tensor):
        if not (value.is_floating_point() or value.is_complex()):
            return value.detach().clone()
        double = value.detach().to(_WIDE.get(value.dtype, torch.float64), copy=True)
        return double.requires_grad_(value.requires_grad)
    if isinstance(value, list | tuple) and not hasattr(value, "_fields"):
        return type(value)(wide(v) for v in value)
    if isinstance(value, dict):
        return {k: wide(v) for k, v in value.items()}
    half_types = (torch.float16, torch.bfloat16, torch.float32)
    return torch.float64 if value in half_types and isinstance(value, torch.dtype) else value


def assert_agree(actual: Any, expected: Any, reference: Callable[[], Any] | None = None) -> None:
    """Same structure, types, dtypes, shapes and values; ``reference`` computes the true ones."""
    _assert_same_form(actual, expected)
    given, wanted = tensors(actual), tensors(expected)
    truth = None
    for position, (one, other) in enumerate(zip(given, wanted, strict=True)):
        try:
            _assert_close(one, other)
        except AssertionError:
            if truth is None:
                truth = tensors(reference()) if reference is not None else []
            known = len(truth) == len(wanted)
            if not known or not as_accurate(one, other, truth[position]):
                raise


def both_raised(actual: tuple[Any, Any], expected: tuple[Any, Any]) -> bool:
    """Whether both raised, and the same type; anything else that differs is an error."""
    if expected[1] is None:
        if actual[1] is not None:
            raise AssertionError(f"jax raises {_shown(actual[1])}") from actual[1]
        return False
    assert actual[1] is not None, f"must raise {_shown(expected[1])}"
    same = isinstance(actual[1], type(expected[1]))
    assert same, f"raises {_shown(actual[1])}, not {_shown(expected[1])}"
    return True


def _shown(error: Exception) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:200]}"


def _assert_same_form(actual: Any, expected: Any) -> None:
    if isinstance(expected, torch.Tensor):
        assert isinstance(actual, torch.Tensor), f"{type(actual).__name__}, not a tensor"
        assert actual.layout == expected.layout, f"layout {actual.layout}, not {expected.layout}"
        assert actual.dtype == expected.dtype, f"dtype {actual.dtype}, not {expected.dtype}"
        assert actual.shape == expected.shape, f"{actual.shape}, not {expected.shape}"
        assert actual.requires_grad == expected.requires_grad, f"requires_grad of {actual.shape}"
    elif isinstance(expected, list | tuple):
        assert len(actual) == len(expected), f"{len(actual)} results, not {len(expected)}"
        for a, e in zip(actual, expected, strict=True):
            _assert_same_form(a, e)
    elif isinstance(expected, dict):
        assert actual.keys() == expected.keys()
        for key, value in expected.items():
            _assert_same_form(actual[key], value)
    elif isinstance(expected, float | complex):
        assert type(actual) is type(expected), f"{type(actual)}, not {type(expected)}"
        torch.testing.assert_close(actual, expected, equal_nan=True)
    else:
        assert actual == expected, f"{actual!r}, not {expected!r}"


def _assert_close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    host = actual.detach().cpu()
    if expected.layout != torch.strided:
        host, expected = host.to_dense(), expected.to_dense()
    torch.testing.assert_close(host, expected.detach(), equal_nan=True)


def as_accurate(actual: torch.Tensor, expected: torch.Tensor, true: torch.Tensor) -> bool:
    """Whether jax is as near to the true value as the CPU is, where these are finite."""
    if not (expected.is_floating_point() or expected.is_complex()):
        return torch.equal(actual.cpu(), expected)
    if true.shape != expected.shape:
        return False
    host, cpu, truth = (t.detach().cpu().to(true.dtype) for t in (actual, expected, true))
    finite = truth.isfinite() & cpu.isfinite()
    if not torch.equal(host.isfinite() & finite, finite):
        return False
    if not torch.equal(host[~finite].nan_to_num(0.5), cpu[~finite].nan_to_num(0.5)):
        return False
    host, cpu, truth = host[finite], cpu[finite], truth[finite]
    if not truth.numel():
        return True
    spacing = torch.finfo(expected.dtype).eps * truth.abs()
    allowed = SLACK * (cpu - truth).abs().max() + SLACK * spacing
    return bool(((host - truth).abs() <= allowed).all())
