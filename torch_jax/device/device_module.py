"""The module ``torch.jax``: for this device the counterpart of ``torch.cuda``.

There is one logical device, ``jax:0``; several chips are one device with a sharding, as in JAX.
Among processes of ``torchrun`` other numbers mean it, too (:mod:`torch_jax.core.ordinals`).

>>> torch.jax.is_available(), torch.jax.device_count()
(True, 1)
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from torch_jax.core import dynamo_constants, forks, ordinals, waking
from torch_jax.device.streams import (  # noqa: F401, what the module has too
    Event,
    Stream,
    StreamContext,
    current_stream,
    default_stream,
    set_stream,
    stream,
    synchronize,
)
from torch_jax.device.streams import awake as _jax
from torch_jax.device.tensor_types import kinds
from torch_jax.memory import dtypes, generators

globals().update(kinds())  # FloatTensor and similar

_peak = 0

# torch.utils.checkpoint replays random numbers only on devices that say so; the generator's state
# is there from the start.
_initialized = True


def _chip() -> Any:
    return _jax().local_devices()[0]


@dynamo_constants.constant
def is_available() -> bool:
    """Return whether the device can be used: whether jax is installed."""
    return importlib.util.find_spec("jax") is not None


def is_initialized() -> bool:
    """Return whether the device has been used in this process."""
    return waking.is_awake()


def init() -> None:
    """Import JAX and the operators now instead of at the first use."""
    _jax()


_is_in_bad_fork = forks.is_lost  # PyTorch asks under this name


@dynamo_constants.constant
def device_count() -> int:
    """Return the number of processes of this host, each with one device; chips are its parts."""
    return ordinals.count()


@dynamo_constants.constant
def current_device() -> int:
    """Return 0, the number that tensors bear in every process."""
    return 0


def set_device(device: Any) -> None:
    """Keep the number of ``device`` for ``torch.accelerator.current_device_index``."""
    ordinals.choose(_number(device))


def _number(device: Any) -> int:
    return device if isinstance(device, int) else torch.device(device or "jax").index or 0


def _index(device: Any) -> int:
    return ordinals.check(_number(device))


class device(contextlib.nullcontext):
    """Context manager that selects a device by index; all indices mean the process's device."""

    def __init__(self, device: Any = None):
        """Check the index."""
        super().__init__()
        self.idx = _index(device)


def manual_seed(seed: int) -> None:
    """Seed the device's default generator."""
    generators.default_generator.manual_seed(seed)


manual_seed_all = manual_seed


def seed() -> None:
    """Seed the default generator from the system."""
    generators.default_generator.seed()


seed_all = seed


def initial_seed() -> int:
    """Return the seed last given to the default generator."""
    return generators.default_generator.initial_seed()


def fold_in(data: int) -> None:
    """Mix an int, such as a process's rank, into the default generator's seed, and start over.

    See :meth:`torch_jax.memory.generators.JaxGenerator.fold_in`.

    >>> _ = torch.manual_seed(0)
    >>> torch.jax.fold_in(1)
    >>> torch.jax.initial_seed() != 0
    True
    """
    _jax()
    generators.default_generator.fold_in(data)


def get_rng_state(device: Any = "jax") -> torch.Tensor:
    """Return the state of the default generator, a CPU uint8 tensor of 16 bytes."""
    _index(device)
    return generators.default_generator.get_state()


def set_rng_state(new_state: torch.Tensor, device: Any = "jax") -> None:
    """Restore a state that :func:`get_rng_state` returned."""
    _index(device)
    generators.default_generator.set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """Return the states of all devices: one."""
    return [get_rng_state()]


def set_rng_state_all(new_states: list[torch.Tensor]) -> None:
    """Restore the states of :func:`get_rng_state_all`."""
    set_rng_state(new_states[0])


def get_device_name(device: Any = None) -> str:
    """Return JAX's name of the chip, such as ``cpu`` or ``NVIDIA H100``."""
    return _chip().device_kind


def get_device_properties(device: Any = None) -> SimpleNamespace:
    """Return ``name``, ``platform``, ``total_memory`` (bytes, 0 where unknown), ``chips``; for
    programs of CUDA: ``major``, ``minor`` (:func:`compute_capability`), ``multi_processor_count``.
    """
    chip = _chip()
    major, minor = compute_capability()
    return SimpleNamespace(
        name=chip.device_kind,
        platform=chip.platform,
        total_memory=mem_get_info()[1],
        chips=_jax().local_device_count(),
        major=major,
        minor=minor,
        multi_processor_count=getattr(chip, "core_count", None) or 1,
    )


def compute_capability(device: Any = None) -> tuple[int, int]:
    """Return the compute capability of NVIDIA's chip, elsewhere (8, 0).

    As ``torch.cuda.get_device_capability``. From 8.0 on chips compute bfloat16, as XLA does
    everywhere.
    """
    major, _, minor = str(getattr(_chip(), "compute_capability", "8.0")).partition(".")
    return int(major), int(minor or 0)


def get_device_capability(device: Any = None) -> dict[str, Any]:
    """Return the dtypes that tensors of the device may have, as ``"supported_dtypes"``."""
    return {"supported_dtypes": set(dtypes.TO_JAX)}


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Return the dtypes that ``torch.autocast("jax")`` may use."""
    return [torch.bfloat16, torch.float16]


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """Return True: XLA computes bfloat16 everywhere."""
    return True


def memory_allocated(device: Any = None) -> int:
    """Return the bytes of the arrays that are alive on the device."""
    global _peak
    stats = _chip().memory_stats()
    if stats and "bytes_in_use" in stats:
        return stats["bytes_in_use"]
    total = sum(array.nbytes for array in _jax().live_arrays() if not array.is_deleted())
    from torch_jax.memory import shared

    total += sum(tensor.nbytes for tensor in shared.held())
    _peak = max(_peak, total)
    return total


def max_memory_allocated(device: Any = None) -> int:
    """Return the peak of bytes in use; on CPU, the largest :func:`memory_allocated` so far."""
    stats = _chip().memory_stats()
    if stats and "peak_bytes_in_use" in stats:
        return stats["peak_bytes_in_use"]
    memory_allocated()
    return _peak


def memory_stats(device: Any = None) -> OrderedDict[str, int]:
    """Return JAX's statistics of the chip, with PyTorch's names for current and peak bytes."""
    stats = OrderedDict(_chip().memory_stats() or {})
    for kind in ("allocated", "active", "reserved"):
        stats[f"{kind}_bytes.all.current"] = memory_allocated()
        stats[f"{kind}_bytes.all.peak"] = max_memory_allocated()
    return stats


def memory_summary(device: Any = None, abbreviated: bool = False) -> str:
    """Return the numbers of :func:`memory_stats`, one a line; then the contents of the memory."""
    numbers = "\n".join(f"{name}: {value}" for name, value in memory_stats().items())
    if abbreviated:
        return numbers
    from torch_jax.device.memory_report import memory_report

    return f"{numbers}\n{memory_report()}"


memory_reserved = memory_allocated
max_memory_reserved = max_memory_allocated


def reset_peak_memory_stats(device: Any = None) -> None:
    """Reset the peak where torch_jax counts it itself (JAX on CPU)."""
    global _peak
    _peak = 0


reset_accumulated_memory_stats = reset_peak_memory_stats
reset_max_memory_allocated = reset_max_memory_cached = reset_peak_memory_stats


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Return free and total bytes of the device: on CPU of the host, zeros where unknown."""
    limit = (_chip().memory_stats() or {}).get("bytes_limit", 0)
    if limit or _chip().platform != "cpu":
        return max(0, limit - memory_allocated()), limit
    try:
        sizes = dict(line.split()[:2] for line in Path("/proc/meminfo").read_text().splitlines())
        return int(sizes["MemAvailable:"]) << 10, int(sizes["MemTotal:"]) << 10
    except (OSError, KeyError):  # not Linux
        return 0, 0


def empty_cache() -> None:
    """Collect tensors in reference cycles; all others free their memory by themselves."""
    gc.collect()


ipc_collect = empty_cache


def can_device_access_peer(device: Any, peer_device: Any) -> bool:
    """Return False: there is no other device."""
    return False


def is_current_stream_capturing() -> bool:
    """Return False: captures are the work of :func:`torch_jax.jit`."""
    return False


class device_of(device):
    """Context manager that selects the device of a tensor or storage."""

    def __init__(self, obj: Any):
        """Any device will do: there is nothing to switch."""
        super().__init__(None)
