"""Collective work of processes: functions of a device, run on "jax" and on "cpu" in one group.

``python -m tests.distributed.checks MODULE`` is one rank. It writes, for each check, what differs
between the devices, or nothing.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from tests.support.compare import TOLERANCE

Check = Callable[[str], Any]


def numbers(
    device: str, *shape: int, dtype: torch.dtype = torch.float32, requires_grad: bool = False
) -> torch.Tensor:
    """Numbers that are others in each process."""
    count = torch.Size(shape).numel()
    values = torch.arange(count).view(shape) * (dist.get_rank() + 1) + dist.get_rank()
    return values.to(dtype).to(device).requires_grad_(requires_grad)


def names_of(module: ModuleType) -> list[str]:
    """The checks of a module: its public functions that take a device, and nothing more."""
    functions = {
        n: f for n, f in vars(module).items() if getattr(f, "__module__", "") == module.__name__
    }
    return [n for n, f in functions.items() if not n.startswith("_") and _takes_device(f)]


def _takes_device(function: Any) -> bool:
    code = getattr(function, "__code__", None)
    return code is not None and code.co_varnames[: code.co_argcount] == ("device",)


def difference(check: Check) -> str:
    """What a check gives on the device and not on the CPU; empty where there is no difference."""
    results = [_outcome(check, device) for device in ("jax", "cpu")]
    if len(results[0]) != len(results[1]) or not all(map(_is_same, *results)):
        return f"jax: {results[0]}\ncpu: {results[1]}"
    return ""


def _outcome(check: Check, device: str) -> list[Any]:
    try:
        return list(_leaves(check(device)))
    except Exception:
        return [f"{device} raised\n{traceback.format_exc()}"]


def _leaves(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        yield value.detach().cpu()
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _leaves(one)
    else:
        yield value


def _is_same(actual: Any, expected: Any) -> bool:
    if not (isinstance(actual, torch.Tensor) and isinstance(expected, torch.Tensor)):
        return type(actual) is type(expected) and actual == expected
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return False
    tolerance = TOLERANCE.get(expected.dtype, 0.0)
    return torch.allclose(actual, expected, rtol=tolerance, atol=tolerance, equal_nan=True)


def raised(function: Callable[[], Any]) -> str:
    """The types of PyTorch's and Python's that an error is of; "nothing" where there is none."""
    try:
        function()
    except (ValueError, TypeError, IndexError, NotImplementedError) as error:
        return type(error).__name__
    except RuntimeError:
        return "RuntimeError"
    return "nothing"
