"""The module ``torch.jax``: for this device what ``torch.cuda`` is for CUDA.

There is one logical device, ``jax:0``; several chips are one device with a sharding, as in JAX.

>>> torch.jax.is_available(), torch.jax.device_count()
(True, 1)
"""

from __future__ import annotations

import gc
import importlib.util
import time
from collections import OrderedDict
from types import SimpleNamespace
from typing import Any

import torch

from torch_jax import _internals, forked, random
from torch_jax import device as _device

_peak = 0

# torch.utils.checkpoint replays random numbers only on devices that say so; the generator's state
# is there from the start.
_initialized = True


def _jax() -> Any:
    _device.wake()
    import jax

    return jax


def _chip() -> Any:
    return _jax().devices()[0]


def is_available() -> bool:
    """Whether the device can be used: whether jax is installed."""
    return importlib.util.find_spec("jax") is not None


def is_initialized() -> bool:
    """Whether the device has been used in this process."""
    return _device.is_awake()


def init() -> None:
    """Import JAX and the operators now instead of at the first use."""
    _jax()


def _is_in_bad_fork() -> bool:
    """Whether this process was forked from one that had started JAX."""
    return forked.is_lost()


def device_count() -> int:
    """1: chips are not devices here but parts of one."""
    return 1


def current_device() -> int:
    """0."""
    return 0


def set_device(device: Any) -> None:
    """Check that ``device`` is ``jax:0``; there is no other to switch to."""
    _index(device)


def _index(device: Any) -> int:
    index = device if isinstance(device, int) else torch.device(device or "jax").index or 0
    if index != 0:
        raise RuntimeError(f"invalid device ordinal {index}: there is one device, jax:0")
    return index


class device:
    """Context manager that selects a device by index; there is only ``jax:0``."""

    def __init__(self, device: Any = None):
        """Check the index."""
        self.idx = _index(device)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_exception: object) -> None:
        pass


def synchronize(device: Any = None) -> None:
    """Wait until every operation given to the device has run; errors surface here."""
    jax = _jax()
    for array in jax.live_arrays():
        if not array.is_deleted():
            array.block_until_ready()


def manual_seed(seed: int) -> None:
    """Seed the device's default generator."""
    random.default_generator.manual_seed(seed)


manual_seed_all = manual_seed


def seed() -> None:
    """Seed the default generator from the system."""
    random.default_generator.seed()


seed_all = seed


def initial_seed() -> int:
    """The seed last given to the default generator."""
    return random.default_generator.initial_seed()


def fold_in(data: int) -> None:
    """Mix an int, such as a process's rank, into the default generator's seed, and start over.

    Processes that were seeded alike then draw different numbers, each the same again for the same
    seed: see :meth:`torch_jax.random.JaxGenerator.fold_in`.

    >>> _ = torch.manual_seed(0)
    >>> torch.jax.fold_in(1)
    >>> torch.jax.initial_seed() != 0
    True
    """
    _jax()
    random.default_generator.fold_in(data)


def get_rng_state(device: Any = "jax") -> torch.Tensor:
    """State of the default generator, a CPU uint8 tensor of 16 bytes."""
    _index(device)
    return random.default_generator.get_state()


def set_rng_state(new_state: torch.Tensor, device: Any = "jax") -> None:
    """Restore a state that :func:`get_rng_state` gave."""
    _index(device)
    random.default_generator.set_state(new_state)


def get_rng_state_all() -> list[torch.Tensor]:
    """The states of all devices: one."""
    return [get_rng_state()]


def set_rng_state_all(new_states: list[torch.Tensor]) -> None:
    """Restore :func:`get_rng_state_all`."""
    set_rng_state(new_states[0])


def get_device_name(device: Any = None) -> str:
    """What JAX calls the chip, such as ``cpu`` or ``NVIDIA H100``."""
    return _chip().device_kind


def get_device_properties(device: Any = None) -> SimpleNamespace:
    """``name``, ``platform``, ``total_memory`` (bytes, 0 where unknown), ``chips``."""
    chip = _chip()
    limit = (chip.memory_stats() or {}).get("bytes_limit", 0)
    return SimpleNamespace(
        name=chip.device_kind,
        platform=chip.platform,
        total_memory=limit,
        chips=_jax().device_count(),
    )


def get_device_capability(device: Any = None) -> dict[str, Any]:
    """Dtypes that the device computes with."""
    return {"supported_dtypes": set(_amp_dtypes()) | {torch.float32, torch.float64}}


def _amp_dtypes() -> list[torch.dtype]:
    return [torch.bfloat16, torch.float16]


def get_amp_supported_dtype() -> list[torch.dtype]:
    """Dtypes that ``torch.autocast("jax")`` may use."""
    return _amp_dtypes()


def is_bf16_supported(including_emulation: bool = True) -> bool:
    """True: XLA computes bfloat16 everywhere."""
    return True


def memory_allocated(device: Any = None) -> int:
    """Bytes of the arrays that are alive on the device."""
    global _peak
    stats = _chip().memory_stats()
    if stats and "bytes_in_use" in stats:
        return stats["bytes_in_use"]
    total = sum(array.nbytes for array in _jax().live_arrays() if not array.is_deleted())
    _peak = max(_peak, total)
    return total


def max_memory_allocated(device: Any = None) -> int:
    """The most bytes in use so far; on CPU, the most that :func:`memory_allocated` has seen."""
    stats = _chip().memory_stats()
    if stats and "peak_bytes_in_use" in stats:
        return stats["peak_bytes_in_use"]
    memory_allocated()
    return _peak


def memory_stats(device: Any = None) -> OrderedDict[str, int]:
    """JAX's statistics of the chip, with PyTorch's names for the current and peak bytes."""
    stats = OrderedDict(_chip().memory_stats() or {})
    stats["allocated_bytes.all.current"] = memory_allocated()
    stats["allocated_bytes.all.peak"] = max_memory_allocated()
    return stats


memory_reserved = memory_allocated
max_memory_reserved = max_memory_allocated


def reset_peak_memory_stats(device: Any = None) -> None:
    """Start the peak over where torch_jax counts it itself (JAX on CPU)."""
    global _peak
    _peak = 0


reset_accumulated_memory_stats = reset_peak_memory_stats


def mem_get_info(device: Any = None) -> tuple[int, int]:
    """Free and total bytes of the device; zeros where JAX does not know (CPU)."""
    total = get_device_properties().total_memory
    return max(0, total - memory_allocated()), total


def empty_cache() -> None:
    """Collect tensors in reference cycles; all others free their memory when they go."""
    gc.collect()


class Stream:
    """Stand-in for a stream: JAX orders work by its data, so there is one."""

    def __init__(self, device: Any = None, priority: int = 0, **_ignored: Any):
        """Make a stand-in; all are alike."""
        self.device = torch.device(_internals.DEVICE_TYPE, 0)
        self.stream_id, self.device_index = 0, 0

    def synchronize(self) -> None:
        """Wait for all work on the device."""
        synchronize()

    def query(self) -> bool:
        """Whether all work is done; waits for it."""
        synchronize()
        return True

    def wait_stream(self, stream: Any) -> None:
        """Nothing to do: work is ordered by its data."""

    def wait_event(self, event: Any) -> None:
        """Nothing to do: work is ordered by its data."""

    def record_event(self, event: Event | None = None) -> Event:
        """Record an event here and return it."""
        event = event or Event(enable_timing=True)
        event.record(self)
        return event

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_exception: object) -> None:
        pass


class Event:
    """Stand-in for an event; recording waits for the device, so that times are true."""

    def __init__(self, enable_timing: bool = False, **_ignored: Any):
        """Make an event that has not been recorded."""
        self._time: float | None = None

    def record(self, stream: Any = None) -> None:
        """Wait for the device and note the time."""
        synchronize()
        self._time = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        """Nothing to do: work is ordered by its data."""

    def query(self) -> bool:
        """True: recording has already waited."""
        return True

    def synchronize(self) -> None:
        """Wait for all work on the device."""
        synchronize()

    def elapsed_time(self, end: Event) -> float:
        """Milliseconds from this event to ``end``."""
        if self._time is None or end._time is None:
            raise RuntimeError("Both events must be recorded before calculating elapsed time.")
        return (end._time - self._time) * 1000.0


def current_stream(device: Any = None) -> Stream:
    """The one stream."""
    return Stream()


default_stream = current_stream


def set_stream(stream: Any) -> None:
    """Nothing to do: there is one stream."""


def stream(stream: Any) -> Stream:
    """A context manager that does nothing."""
    return stream if stream is not None else Stream()
