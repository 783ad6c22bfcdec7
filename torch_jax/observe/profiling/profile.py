"""``torch_jax.profile(function, ...)``: the time of a few calls, in Python and in XLA's kernels."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch_jax._private import jax_profiler
from torch_jax.core import compilations
from torch_jax.device import streams
from torch_jax.device.trace import events
from torch_jax.observe.profiling import kernels, page
from torch_jax.observe.profiling.kernels import Kernels
from torch_jax.observe.profiling.samples import Sampler


@dataclass(frozen=True)
class Profile:
    """The time of calls, in parts; ``str`` of it is a page for people, ``vars`` of it for programs.

    Attributes:
      what: the function, or the script.
      calls: the number of calls that the seconds below are of.
      seconds: from the begin of the first call to the end of the last one's work on the device.
      busy: how long any kernel ran on the device.
      parts: seconds of each part of Python's work, see :mod:`.samples`; the device's work meanwhile
        is in none of them, unless Python waited for it.
      compiles: how many programs were compiled.
      loaded: how many were loaded from disk.
      kernels: those of XLA, by name and line; their seconds are of each thread or stream by itself.
      lines: the same by line of the user's alone.
      moves: seconds of kernels that only copy.
      python_lines: how many samples found each line of the user's, ``(file, line, function)``.
      is_script: whether a whole script was run, from its imports on.
    """

    what: str
    calls: int
    seconds: float
    busy: float
    parts: dict[str, float]
    compiles: int
    loaded: int
    kernels: list[Kernels]
    lines: list[Kernels]
    moves: float
    python_lines: dict[tuple[str, int, str], int]
    is_script: bool = False

    def __str__(self) -> str:
        return "\n".join(page.lines_of(self))


def profile(
    function: Callable[..., Any], *args: Any, calls: int = 10, warm_up: int = 12, **kwargs: Any
) -> Profile:
    """Call a function and return the parts of its time: in Python, in guards, in which kernels.

    Args:
      function: a training step, a model: anything that works on device ``jax``.
      *args: its arguments, and ``kwargs`` those by name.
      calls: the number of calls that are measured.
      warm_up: the number of calls before; a function under :func:`torch_jax.jit` is recorded in
        its first eight, and compiled after them.

    Raises:
      RuntimeError: another trace of JAX's profiler is under way in this process.
      ValueError: ``calls`` is less than 1.

    >>> import torch, torch_jax
    >>> x = torch.ones(72, 72, device="jax")
    >>> found = torch_jax.profile(torch_jax.jit(torch.mm), x, x, calls=3)
    >>> found.calls, found.busy < found.seconds, found.kernels[0].operator
    (3, True, 'aten::mm')
    """
    if calls < 1:
        raise ValueError(f"at least one call is measured, not {calls}")
    for _ in range(warm_up):
        function(*args, **kwargs)
    streams.synchronize()
    with Profiling() as profiling:
        for _ in range(calls):
            function(*args, **kwargs)
    name = getattr(function, "__qualname__", type(function).__name__)
    return profiling.profile(name, calls)


class Profiling:
    """Samples this thread and traces the device while it is open."""

    def __enter__(self) -> Profiling:
        self._before = compilations.own()
        self._session = jax_profiler.start()
        self._start = time.perf_counter()
        self._sampler = Sampler(threading.get_ident()).__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            self._sampler.__exit__()
            streams.synchronize()
        finally:
            self._seconds = time.perf_counter() - self._start
            self._trace = jax_profiler.stop(self._session)
            self._programs = compilations.own().minus(self._before)

    def profile(self, what: str, calls: int, is_script: bool = False) -> Profile:
        """Return the profile."""
        found = [e for e in events.read(self._trace) if e.is_kernel and not e.is_whole]
        sampler = self._sampler
        return Profile(
            what=what,
            calls=calls,
            seconds=self._seconds,
            busy=kernels.busy(found),
            parts={part: sampler.share(part) for part, _ in sampler.parts.most_common()},
            compiles=self._programs.compiled,
            loaded=self._programs.loaded,
            kernels=kernels.added_up(found, kernels.by_name_and_line),
            lines=kernels.added_up(found, kernels.by_line),
            moves=sum(e.end - e.begin for e in found if kernels.is_move(e)) / 1e9,
            python_lines=dict(sampler.lines.most_common()),
            is_script=is_script,
        )
