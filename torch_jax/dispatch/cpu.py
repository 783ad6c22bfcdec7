"""The CPU rung: operators that the device does not serve run on copies on the CPU."""

from __future__ import annotations

import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from torch_jax import config
from torch_jax._private import pytorch
from torch_jax.core import costs, errors, tracers
from torch_jax.eager.twins import by_name
from torch_jax.eager.variants import is_mutated
from torch_jax.memory.storage import tensors_in

FALLBACKS: Counter[str] = Counter()  # overloads that ran on the CPU, and how often

_running = threading.local()  # ``ops``: how often an overload is being replaced on this thread


def on_cpu(op: Any) -> Callable[..., Any]:
    """Run on copies on the CPU and write changed arguments back; warned and counted."""
    written = [a.name for a in op._schema.arguments if is_mutated(a)]

    def call(*args: Any, **kwargs: Any) -> Any:
        policy = config.get("cpu_fallback")
        if policy == "error":
            raise errors.not_found(op, args, kwargs)
        FALLBACKS[str(op)] += 1
        if policy == "warn" and FALLBACKS[str(op)] == 1:
            warnings.warn(
                f"{errors.describe_call(op, args, kwargs)} has no lowering to JAX and runs on the "
                f"CPU, with a copy each way ({tracers.user_line()}). "
                "TORCH_JAX_CPU_FALLBACK=error forbids this.",
                stacklevel=2,
            )
        with costs.measured("fallback", str(op)):
            return run(args, kwargs)

    def run(args: tuple, kwargs: dict[str, Any]) -> Any:
        host_args, host_kwargs = pytree.tree_map(_to_host, (args, kwargs))
        if "device" in host_kwargs:
            host_kwargs["device"] = torch.device("cpu")
        try:
            result = op(*host_args, **host_kwargs)
        except NotImplementedError as error:
            raise errors.not_found(op, args, kwargs) from error
        given, host = by_name(op, args, kwargs), by_name(op, host_args, host_kwargs)
        for name in written:
            _write_back(tensors_in(given[name]), tensors_in(host[name]))
        back = {id(host[name]): given[name] for name in written}

        def on_device(tensor: torch.Tensor) -> Any:
            return back[id(tensor)] if id(tensor) in back else tensor.to(pytorch.DEVICE_TYPE)

        return pytree.tree_map_only(torch.Tensor, on_device, result)

    return call


def unless_running(op: Any, *functions: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function in place of ``op``; where it leads back to ``op``, the next one runs.

    PyTorch derives some operators of one another both ways: a functional one from its ``out=``
    overload, and here the latter from the former. After the last function comes the CPU.
    """
    to_cpu = on_cpu(op)

    def call(*args: Any, **kwargs: Any) -> Any:
        running = _running.__dict__.setdefault("ops", Counter())
        if running[op] == len(functions):
            return to_cpu(*args, **kwargs)
        function = functions[running[op]]
        running[op] += 1
        try:
            result = function(*args, **kwargs)
        finally:
            running[op] -= 1
        return to_cpu(*args, **kwargs) if result is NotImplemented else result

    return call


def _is_on_device(tensor: torch.Tensor) -> bool:
    return tensor.device.type == pytorch.DEVICE_TYPE  # sparse tensors have no storage


def _to_host(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.cpu() if _is_on_device(value) else value
    if isinstance(value, torch.device) and value.type == pytorch.DEVICE_TYPE:
        return torch.device("cpu")
    return value


def _write_back(targets: Iterable[torch.Tensor], copies: Iterable[torch.Tensor]) -> None:
    for target, copy in zip(targets, copies, strict=True):
        if _is_on_device(target):
            if target.shape != copy.shape:
                target.resize_(copy.shape)
            target.copy_(copy)
