"""Streams and events: JAX orders work by its data, so there is one stream.

They are PyTorch's own kinds: ``torch.Stream`` and ``torch.Event`` make them for this device. Events
that measure time wait for the device, so that times are true.

JAX waits for arrays. A program whose results were dropped has none left to wait for, but devices
run programs in order, the CPU those of one thread: a *fence*, the last program launched, ends last.
"""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable
from typing import Any

import torch

from torch_jax._private import jax_core, pytorch
from torch_jax.core import errors, forks, waking
from torch_jax.core.active import ACTIVE

_STREAM: Any = torch.Stream
_EVENT: Any = torch.Event
FENCE = "torch_jax_fence"


def synchronize(device: Any = None) -> None:
    """Wait until every operation given to the device has run; errors surface here.

    Raises:
      torch.OutOfMemoryError: no memory was left for a live tensor.
      RuntimeError: the computation of a tensor failed. All others have been waited for.
      IndexError: on an accelerator, an index of an earlier call was out of range.
    """
    if not (waking.is_awake() or forks.is_lost()):
        return
    if ACTIVE.recorder is not None:  # recorded operators are launched now
        ACTIVE.recorder.flush()
    jax = awake()
    if jax_core.is_outside_traces():  # a trace would record the fence
        run, starts = _fence()
        for array in [run(start) for start in starts]:  # first all: devices run side by side
            array.block_until_ready()
    if failures := list(filter(None, map(_failure, jax.live_arrays()))):
        raise failures.pop(0)  # a list that held it would keep this frame, and the arrays, alive
    from torch_jax.memory import flags  # which imports JAX

    flags.raise_failed()


@functools.cache
def _fence() -> tuple[Any, list[Any]]:
    """Return the fence, and the array of each of this process's devices that it takes."""
    import jax

    def fence(start: Any) -> Any:
        return ~start

    fence.__name__ = FENCE
    return jax.jit(fence), [jax.device_put(False, device) for device in jax.local_devices()]


def _failure(array: Any) -> Exception | None:
    """Wait for an array; return the error of its computation, None where it succeeded."""
    try:
        array.block_until_ready()
    except RuntimeError as error:
        if not array.is_deleted():  # a program on another thread may have taken it
            return errors.translate(error, "while waiting for the device")
    return None


def awake() -> Any:
    """Return JAX, after the first use of the device."""
    waking.wake()
    import jax

    return jax


class Stream(_STREAM):
    """A stream of the device; all are one.

    >>> torch.jax.Stream() == torch.jax.current_stream() == torch.Stream(device="jax")
    True
    """

    def __new__(cls, device: Any = None, priority: int = 0, **_ignored: Any) -> Any:
        """Make a stream; ``priority`` is accepted and ignored, since there is one stream."""
        errors.check_ordinal(torch.device(device or pytorch.DEVICE_TYPE))
        of_device = {"device_index": 0, "device_type": int(pytorch.PRIVATE_USE1)}
        return super().__new__(cls, stream_id=0, **of_device)

    def synchronize(self) -> None:
        """Wait for all work on the device."""
        synchronize()

    def query(self) -> bool:
        """Wait for all work, and return True."""
        synchronize()
        return True

    def wait_stream(self, stream: Any) -> None:
        """Do nothing: work is ordered by its data."""

    def wait_event(self, event: Any) -> None:
        """Do nothing: work is ordered by its data."""

    def record_event(self, event: Any = None) -> Any:
        """Record an event here and return it."""
        event = Event() if event is None else event
        event.record(self)
        return event

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_exception: object) -> None:
        pass


class Event(_EVENT):
    """An event of the device; with ``enable_timing``, recording it waits for all work.

    >>> start, end = (torch.jax.Event(enable_timing=True) for _ in range(2))
    >>> start.record(); end.record()
    >>> start.elapsed_time(end) >= 0
    True
    """

    def __new__(cls, *_args: Any, enable_timing: bool = False, **_ignored: Any) -> Any:
        """Make an event that has not been recorded."""
        event = super().__new__(cls, pytorch.DEVICE_TYPE, enable_timing=enable_timing)
        event._measures, event._time = enable_timing, 0.0
        return event

    def record(self, stream: Any = None) -> None:
        """Note the time when all work is done, if it is to be measured."""
        if self._measures:
            synchronize()
            self._time = time.perf_counter()

    def wait(self, stream: Any = None) -> None:
        """Do nothing: work is ordered by its data."""

    query, synchronize = Stream.query, Stream.synchronize

    def elapsed_time(self, end_event: Any) -> float:
        """Return milliseconds from this event to ``end_event``."""
        if not (self._measures and end_event._measures):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if not (self._time and end_event._time):
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return (end_event._time - self._time) * 1000.0


def current_stream(device: Any = None) -> Stream:
    """Return the one stream."""
    return Stream()


default_stream = current_stream


def set_stream(stream: Any) -> None:
    """Do nothing: there is one stream."""


class StreamContext(contextlib.nullcontext):
    """A region on the one stream."""

    def __init__(self, stream: Any = None):
        """Take a stream, or None as PyTorch does."""
        super().__init__(stream)
        self.stream = stream


stream = StreamContext


def standing_for(kind: Any, ours: Any, is_ours: Callable[..., bool] | None = None) -> Any:
    """Return a class that replaces ``kind``, but makes ``ours`` for arguments of this device."""
    asks = is_ours or _is_ours

    class StandsFor(type(kind)):  # type: ignore[misc]
        def __subclasscheck__(cls, subclass: type) -> bool:
            return issubclass(subclass, kind) if cls is public else cls in subclass.__mro__

        def __instancecheck__(cls, instance: object) -> bool:
            return issubclass(type(instance), cls)

        def __call__(cls, *args: Any, **kwargs: Any) -> Any:
            if cls is not public:
                return super().__call__(*args, **kwargs)
            return (ours if asks(*args, **kwargs) else kind)(*args, **kwargs)

    public: Any = StandsFor(kind.__name__, (kind,), {"__doc__": kind.__doc__})
    public.__module__ = "torch"
    return public


def _is_ours(device: Any = None, **options: Any) -> bool:
    """Return whether the arguments of a stream are of this device."""
    if "device_type" in options:
        return options["device_type"] == int(pytorch.PRIVATE_USE1)
    if device is None:
        return pytorch.is_accelerator()
    return torch.device(device).type == pytorch.DEVICE_TYPE
