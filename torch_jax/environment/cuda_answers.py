"""Answers of ``torch.cuda`` where ``"cuda"`` means jax, and replacements for its other names."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch

from torch_jax._private import jax_core
from torch_jax.core import ordinals
from torch_jax.device import device_module, streams
from torch_jax.memory import generators

# Releases that pass the checks of versions in programs; nothing of CUDA is called.
CUDA_VERSION = "12.8"
CUDNN_VERSION = 91002
NCCL_VERSION = (2, 27, 3)

# Functions of the runtime that succeed.
_RUNTIME = "cudaProfilerStart cudaProfilerStop cudaHostRegister cudaHostUnregister"


def always(value: Any) -> Callable[..., Any]:
    """Return a function of any arguments that returns ``value``."""
    return lambda *_args, **_kwargs: value


nothing = always(None)


def set_device(device: Any) -> None:
    """Keep the number of a device, as ``torch.jax`` does; an unknown number means the first.

    >>> set_device(7)
    """
    number = device if isinstance(device, int) else torch.device(device).index or 0
    device_module.set_device(ordinals.known(number))


def nested_stats(device: Any = None) -> dict[str, Any]:
    """Return the numbers of ``memory_stats`` by the parts of their names.

    >>> nested_stats()["allocated_bytes"]["all"].keys()
    dict_keys(['current', 'peak'])
    """
    nested: dict[str, Any] = {}
    for name, value in device_module.memory_stats().items():
        *path, last = name.split(".")
        inner = nested
        for part in path:
            inner = inner.setdefault(part, {})
        inner[last] = value
    return nested


def limit_memory(fraction: float, device: Any = None) -> None:
    """Check the fraction, and name the variable that JAX reads when it starts."""
    if not 0 <= fraction <= 1:
        raise ValueError(f"Invalid fraction value: {fraction}. Allowed range: 0~1")
    warnings.warn(
        "torch.cuda.set_per_process_memory_fraction does nothing on device 'jax': set "
        f"XLA_PYTHON_CLIENT_MEM_FRACTION={fraction} before Python starts.",
        stacklevel=3,
    )


def processes(device: Any = None) -> str:
    """Return ``torch.cuda.list_gpu_processes``'s text for this process: JAX sees no other."""
    used = device_module.memory_allocated() / 2**20
    return f"GPU:0\nprocess {os.getpid():>10d} uses {used:>12.3f} MB GPU memory"


def sync_debug_mode(mode: int | str) -> None:
    """Name the report on lines that wait, if a program asks for warnings of these."""
    if mode in (0, "default"):
        return
    warnings.warn(
        "device 'jax' does not warn of synchronizing calls: `python -m torch_jax run script.py` "
        "reports the lines that wait, and for how long.",
        stacklevel=3,
    )


def runtime() -> SimpleNamespace:
    """Return ``torch.cuda.cudart()``: the functions that programs call by hand."""
    return SimpleNamespace(
        cudaError=SimpleNamespace(success=0),
        cudaGetErrorString=lambda code: f"error {code}",
        cudaMemGetInfo=device_module.mem_get_info,
        **dict.fromkeys(_RUNTIME.split(), always(0)),
    )


def check_error(code: int) -> None:
    """Raise for a result of :func:`runtime`'s functions that is no success."""
    if code != 0:
        raise RuntimeError(f"error {code}")


class DefaultGenerators(Sequence):
    """``torch.cuda.default_generators``: that of the device, where ``"cuda"`` means jax."""

    def __init__(self, originals: Sequence[Any], is_ours: Callable[[], bool]):
        """Take ``is_ours``, which returns whether the caller's ``"cuda"`` is jax."""
        self._originals, self._is_ours = originals, is_ours

    def _now(self) -> Sequence[Any]:
        return (generators.default_generator,) if self._is_ours() else self._originals

    def __len__(self) -> int:
        return len(self._now())

    def __getitem__(self, index: Any) -> Any:
        return self._now()[index]


# The functions of torch.jax of the same name.
_OF_THE_DEVICE = {
    name: value
    for name, value in vars(device_module).items()
    if callable(value)
    and not name.startswith("_")
    and getattr(value, "__module__", "") in (device_module.__name__, streams.__name__)
}

_NOTHING = (
    "caching_allocator_enable nvtx.mark nvtx.range_end "
    "profiler.start profiler.stop reset_accumulated_host_memory_stats "
    "reset_peak_host_memory_stats _sleep"
)
_ZERO = "get_sync_debug_mode nvtx.range_pop nvtx.range_push nvtx.range_start"
_NO = (
    "nccl.is_available tunable.is_enabled tunable.record_untuned_is_enabled "
    "tunable.tuning_is_enabled"
)
_YES = "backends.cuda.is_built backends.cudnn.is_available is_tf32_supported"

ANSWERS: dict[str, Callable[..., Any]] = {
    **_OF_THE_DEVICE,
    **dict.fromkeys(_NOTHING.split(), nothing),
    **dict.fromkeys(_ZERO.split(), always(0)),
    **dict.fromkeys(_NO.split(), always(False)),
    **dict.fromkeys(_YES.split(), always(True)),
    "backends.cudnn.version": lambda: jax_core.cudnn_version() or CUDNN_VERSION,
    "caching_allocator_disabled": nullcontext,
    "cudart": runtime,
    "check_error": check_error,
    "device": lambda device=None: device_module.device(),
    "device_memory_used": device_module.memory_allocated,
    "get_allocator_backend": always("native"),
    "get_arch_list": lambda: ["sm_{}{}".format(*device_module.compute_capability())],
    "get_device_capability": device_module.compute_capability,
    "get_gencode_flags": always(""),
    "get_per_process_memory_fraction": always(1.0),
    "host_memory_stats": dict,
    "host_memory_stats_as_nested_dict": dict,
    "list_gpu_processes": processes,
    "make_graphed_callables": lambda callables, *_args, **_kwargs: callables,  # compute the same
    "max_memory_cached": device_module.max_memory_allocated,
    "memory_cached": device_module.memory_allocated,
    "memory_snapshot": lambda *_args, **_kwargs: [],
    "memory_stats_as_nested_dict": nested_stats,
    "nccl.version": always(NCCL_VERSION),
    "set_device": set_device,
    "set_per_process_memory_fraction": limit_memory,
    "set_sync_debug_mode": sync_debug_mode,
    "_lazy_init": device_module.init,
}

# The beginnings of names of a part of CUDA: a replacement.
_BEGINNINGS = {
    "CUDAGraph graph": "torch_jax.jit(function) compiles what a graph would replay",
    "CUDAPluggableAllocator change_current_allocator": (
        "XLA allocates: see XLA_PYTHON_CLIENT_ALLOCATOR"
    ),
    "MemPool use_mem_pool": "XLA allocates: leave the pool out",
    "caching_allocator": "make a tensor: torch.empty(size, dtype=torch.uint8, device='cuda')",
    "ExternalStream GreenContext get_stream_from_external": (
        "leave the stream out: JAX orders work by its data"
    ),
    "jiterator": "write the function with PyTorch's operators under torch_jax.jit, or with "
    "torch_jax.pallas_op",
    "current_blas_handle": "XLA calls its own libraries: use torch.matmul",
    "current_solver_handle": "XLA calls its own libraries: use torch.linalg",
    "tunable": "XLA tunes its programs by itself: leave TunableOp out",
    "gds": "read with torch.load and move with .cuda()",
    "nccl": "use torch.distributed, whose backend 'nccl' is 'jax' here",
    "sparse": "use torch.sparse_coo_tensor(indices, values, device='cuda')",
    "clock_rate memory_usage power_draw temperature utilization": (
        "NVML answers: run nvidia-smi, or import pynvml"
    ),
    "memory._": "use jax.profiler.save_device_memory_profile(file)",
    "backends.cuda.cufft_plan_cache": "XLA plans transforms by itself: leave the cache alone",
}
INSTEAD = {one: instead for names, instead in _BEGINNINGS.items() for one in names.split()}


def refusal(name: str) -> RuntimeError:
    """Return the error for a name of ``torch.cuda`` that needs CUDA itself.

    >>> print(refusal("jiterator.something"))  # doctest: +ELLIPSIS
    torch.cuda.jiterator.something needs CUDA itself, and "cuda" means device 'jax' here: write ...
    """
    found = [instead for beginning, instead in INSTEAD.items() if name.startswith(beginning)]
    found += ["make a tensor on device 'cuda'"] if name.endswith("Storage") else []
    full = f"torch.{name}" if name.startswith("backends.") else f"torch.cuda.{name}"
    instead = found[0] if found else "leave the call out where torch_jax runs the program"
    return RuntimeError(
        f"{full} needs CUDA itself, and \"cuda\" means device 'jax' here: {instead}"
    )
