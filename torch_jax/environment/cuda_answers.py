"""Answers of ``torch.cuda`` where ``"cuda"`` means jax, for names that ``torch.jax`` does not have.

:data:`ANSWERS` has a function for each name, :data:`INSTEAD` a replacement for names that need a
piece of CUDA itself. A name in neither is refused, too (:mod:`.cuda_names`).
"""

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


def nothing(*_args: Any, **_kwargs: Any) -> None:
    """Do nothing."""


def zero(*_args: Any, **_kwargs: Any) -> int:
    """Return 0, as a count or as a success."""
    return 0


def yes(*_args: Any, **_kwargs: Any) -> bool:
    """Return ``True``."""
    return True


def cudnn_version() -> int:
    """Return the version of the cuDNN which JAX calls, elsewhere one that passes checks."""
    return jax_core.cudnn_version() or CUDNN_VERSION


# --- devices --------------------------------------------------------------------------------------


def set_device(device: Any) -> None:
    """Keep the number of a device, as ``torch.jax`` does; an unknown number means the first.

    >>> set_device(7)
    """
    number = device if isinstance(device, int) else torch.device(device).index or 0
    device_module.set_device(ordinals.known(number))


class DeviceRegion:
    """``with torch.cuda.device(1):``; each number means the one device of this process."""

    def __init__(self, device: Any = None):
        """Take any device."""
        self.idx = 0

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_exception: object) -> None:
        pass


def architectures() -> list[str]:
    """Return the capability of the chip, as ``torch.cuda.get_arch_list`` writes it."""
    return ["sm_{}{}".format(*device_module.compute_capability())]


# --- memory ---------------------------------------------------------------------------------------


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
        cudaProfilerStart=zero,
        cudaProfilerStop=zero,
        cudaHostRegister=zero,
        cudaHostUnregister=zero,
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


def graphed(callables: Any, *_args: Any, **_kwargs: Any) -> Any:
    """Return the callables, which compute the same without graphs."""
    return callables


# --- the tables -----------------------------------------------------------------------------------

# The functions of torch.jax of the same name.
_OF_THE_DEVICE = {
    name: value
    for name, value in vars(device_module).items()
    if callable(value)
    and not name.startswith("_")
    and getattr(value, "__module__", "") in (device_module.__name__, streams.__name__)
}

ANSWERS: dict[str, Callable[..., Any]] = _OF_THE_DEVICE | {
    "backends.cuda.is_built": yes,
    "backends.cuda.cufft_plan_cache.clear": nothing,
    "backends.cudnn.is_available": yes,
    "backends.cudnn.version": cudnn_version,
    "caching_allocator_disabled": nullcontext,
    "caching_allocator_enable": nothing,
    "cudart": runtime,
    "check_error": check_error,
    "device": DeviceRegion,
    "device_memory_used": device_module.memory_allocated,
    "get_allocator_backend": lambda: "native",
    "get_arch_list": architectures,
    "get_device_capability": device_module.compute_capability,
    "get_gencode_flags": lambda: "",
    "get_per_process_memory_fraction": lambda device=None: 1.0,
    "get_sync_debug_mode": zero,
    "host_memory_stats": dict,
    "host_memory_stats_as_nested_dict": dict,
    "is_tf32_supported": yes,
    "list_gpu_processes": processes,
    "make_graphed_callables": graphed,
    "max_memory_cached": device_module.max_memory_allocated,
    "memory_cached": device_module.memory_allocated,
    "memory_snapshot": lambda *_args, **_kwargs: [],
    "memory_stats_as_nested_dict": nested_stats,
    "nccl.is_available": lambda *_args: False,
    "nccl.version": lambda: NCCL_VERSION,
    "nvtx.mark": nothing,
    "nvtx.range_end": nothing,
    "nvtx.range_pop": zero,
    "nvtx.range_push": zero,
    "nvtx.range_start": zero,
    "profiler.start": nothing,
    "profiler.stop": nothing,
    "reset_accumulated_host_memory_stats": nothing,
    "reset_peak_host_memory_stats": nothing,
    "set_device": set_device,
    "set_per_process_memory_fraction": limit_memory,
    "set_sync_debug_mode": sync_debug_mode,
    "_lazy_init": device_module.init,
    "_sleep": nothing,
    "tunable.is_enabled": lambda: False,
    "tunable.record_untuned_is_enabled": lambda: False,
    "tunable.tuning_is_enabled": lambda: False,
}

# By the beginning of a name: a replacement for this part of CUDA.
INSTEAD = {
    "CUDAGraph": "torch_jax.jit(function) compiles what a graph would replay",
    "graph": "torch_jax.jit(function) compiles what a graph would replay",
    "CUDAPluggableAllocator": "XLA allocates: see XLA_PYTHON_CLIENT_ALLOCATOR",
    "change_current_allocator": "XLA allocates: see XLA_PYTHON_CLIENT_ALLOCATOR",
    "MemPool": "XLA allocates: leave the pool out",
    "use_mem_pool": "XLA allocates: leave the pool out",
    "caching_allocator": "make a tensor: torch.empty(size, dtype=torch.uint8, device='cuda')",
    "ExternalStream": "leave the stream out: JAX orders work by its data",
    "GreenContext": "leave the stream out: JAX orders work by its data",
    "get_stream_from_external": "leave the stream out: JAX orders work by its data",
    "jiterator": "write the function with PyTorch's operators under torch_jax.jit, or with "
    "torch_jax.pallas_op",
    "current_blas_handle": "XLA calls its own libraries: use torch.matmul",
    "current_solver_handle": "XLA calls its own libraries: use torch.linalg",
    "tunable": "XLA tunes its programs by itself: leave TunableOp out",
    "gds": "read with torch.load and move with .cuda()",
    "nccl": "use torch.distributed, whose backend 'nccl' is 'jax' here",
    "sparse": "use torch.sparse_coo_tensor(indices, values, device='cuda')",
    "clock_rate": "NVML answers: run nvidia-smi, or import pynvml",
    "memory_usage": "NVML answers: run nvidia-smi, or import pynvml",
    "power_draw": "NVML answers: run nvidia-smi, or import pynvml",
    "temperature": "NVML answers: run nvidia-smi, or import pynvml",
    "utilization": "NVML answers: run nvidia-smi, or import pynvml",
    "memory._": "use jax.profiler.save_device_memory_profile(file)",
    "backends.cuda.cufft_plan_cache": "XLA plans transforms by itself: leave the cache alone",
}


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
