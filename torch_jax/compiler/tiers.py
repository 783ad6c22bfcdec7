"""Single operators are compiled when that pays: quickly at first, and well later.

Of the first call of a small operator nearly all is LLVM's work on code that will run for
microseconds. So an operator is compiled in a fast tier (:func:`options.fast`), and again with full
optimisation when it has done a certain amount of work: elements times calls. The second
compilation runs on a thread of its own, from half of that amount on; the new code is taken exactly
when the amount is reached, so that the results of a program do not hang on the speed of a thread.
(The tiers agree to the last bit except where LLVM contracts a product and a sum into one rounding,
or XLA's emitters spell a function differently; ``docs/differences.md`` says which.)

Before that comes a tier that compiles nothing, where NumPy computes an operator to the same bits
(:mod:`torch_jax.compiler.by_numpy`): many an operator of a first answer is called a few times only.

Whole programs, of ``jit``, ``torch.compile`` and exports, are optimised at once. Platforms that
have no fast tier compile operators well at once, as all do where the setting ``tiers`` is off.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any

import jax

from torch_jax import config
from torch_jax._private import jax_core
from torch_jax.compiler import by_numpy, options
from torch_jax.compiler.direct import direct
from torch_jax.core import forks

_x64 = jax_core.x64_state()

# Elements times calls after which an operator is worth 30 to 100 ms of LLVM's time on another
# core. A call of few elements costs as much as one of a thousand, and counts for as many.
_WORTH = 1 << 22
_LEAST = 1 << 10

# The same for the first compilation, of some 20 ms: a call of NumPy's costs 50 µs more than one of
# compiled code, and as much again for every so many elements.
_WORTH_COMPILING = 1 << 20
_SMALL = 1 << 13
_making = threading.Lock()  # a function has one of each tier

# Calls after which it is worth a millisecond to have each later one cost 5 µs less.
_OFTEN = 64


class Tiered:
    """A function of arrays, compiled quickly, then well.

    Attributes:
      plain: what may be called within a trace, where XLA's options belong to the outermost program.
      call: what is called outside of one. It is another function after the promotion, of which
        ``promoted`` is told.
      is_full: whether that is of the full tier, after the fast one.
    """

    __slots__ = (
        "_elements", "_fast", "_full", "_function", "_ready",
        "call", "is_full", "plain", "promoted",
    )  # fmt: skip

    def __init__(self, function: Callable[..., Any], elements: int):
        """``elements``: how many the function reads and writes at a call."""
        self._function, self._elements = function, elements
        self.plain = jax.jit(function)
        self.promoted: Callable[[], Any] | None = None
        self._ready: threading.Event | None = None
        self._fast: Any = None
        self.is_full = False
        tiers = elements < _WORTH and config.get("tiers") and options.has_fast()
        calls = _WORTH_COMPILING // max(elements, _SMALL)
        if tiers and calls and by_numpy.is_here():
            self.call = self._uncompiled(calls)
        else:
            self.call = self._compiled() if tiers else self._well(self._jit(options.operator()))

    def _jit(self, given: dict[str, Any]) -> Any:
        return jax.jit(self._function, compiler_options=given)

    def _compiled(self) -> Callable[..., Any]:
        """The fast tier, which counts its calls; the full one where XLA has no faster."""
        fast = self._quick()
        if fast is self._full:
            return self._well(fast)
        return self._counting(fast, _WORTH // max(self._elements, _LEAST))

    def _quick(self) -> Any:
        """The fast tier. Which options this XLA knows is asked only now: it takes two compiles."""
        with _making:
            if self._fast is None:
                fast, full = options.fast(), options.operator()
                self._full = self._jit(full)
                self._fast = self._full if fast == full else self._jit(fast)
        return self._fast

    def _uncompiled(self, calls: int) -> Callable[..., Any]:
        """The first calls, by NumPy where this changes no bit; after these comes the fast tier."""
        left, half, run, ready = calls, calls // 2, None, None
        then: Callable[..., Any] | None = None

        def call(*args: Any) -> Any:
            nonlocal left, run, ready, then
            if left == calls:
                run = by_numpy.by_numpy(self.plain.trace(*args)) if by_numpy.takes(args) else None
            left -= 1
            if run is None or left < 0 or not by_numpy.takes(args):
                if ready is not None:
                    ready.wait()
                then = then or self._compiled()
                self._goes_on(then)
                return then(*args)
            if left < half and ready is None:
                ready = WORKER.submit(lambda *given: self._quick()(*given), args)
            return run(*args)

        return call

    def _goes_on(self, call: Callable[..., Any]) -> None:
        """Call this from here on."""
        self.call = call
        if self.promoted is not None:
            self.promoted()

    def _counting(self, fast: Callable[..., Any], calls: int) -> Callable[..., Any]:
        """The fast tier, which counts its calls; in the second half the full one is compiled."""
        left, half, often = calls, calls // 2, calls - _OFTEN
        run = fast

        def jitted(_: Any) -> None:
            nonlocal run
            run = fast

        def call(*args: Any) -> Any:
            nonlocal left, run
            left -= 1
            if left > half:
                if left == often:
                    run = direct(fast, args, jitted)
                return run(*args)
            return self._late()(*args) if left <= 0 else self._soon(run, args)

        return call

    def _soon(self, fast: Callable[..., Any], args: tuple) -> Any:
        """A call of the second half."""
        if self._ready is None and not any(map(_is_on_many, args)):
            self._ready = WORKER.submit(self._full, args)
        return fast(*args)

    def _late(self) -> Callable[..., Any]:
        """The full tier, which is taken from here on."""
        if self._ready is not None:
            self._ready.wait()
        self.is_full = True
        self._goes_on(self._well(self._full, 1))
        return self.call

    def _well(self, jitted: Callable[..., Any], calls: int = _OFTEN) -> Callable[..., Any]:
        """The full tier, whose executable is called directly after so many calls."""
        left = calls

        def call(*args: Any) -> Any:
            nonlocal left
            result = jitted(*args)
            left -= 1
            if left == 0:
                self._goes_on(direct(jitted, args, self._goes_on))
            return result

        return call


def _is_on_many(argument: Any) -> bool:
    """Whether an array lies on many devices: two threads must not run programs over these.

    One device would begin with the one program and another with the other, and each wait there for
    the rest of them for ever.
    """
    return getattr(getattr(argument, "sharding", None), "num_devices", 1) > 1


class _Worker:
    """A thread that compiles by calling: the arguments are arrays, the result is not looked at."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._ends = False

    def submit(self, function: Callable[..., Any], args: tuple) -> threading.Event:
        """Have ``function`` called with ``args``; the event is set when it has been."""
        done = threading.Event()
        with self._lock:
            if self._ends:
                done.set()
                return done
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="torch_jax compiles", daemon=True
                )
                self._thread.start()
        self._jobs.put((function, args, done))
        return done

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            function, args, done = job
            try:
                if not self._ends:
                    _x64.swap_local(True)  # this thread has no other work
                    function(*args)
            except Exception:  # an array was donated meanwhile: the first call compiles then
                pass
            finally:
                del job, function, args
                done.set()

    def stop(self) -> None:
        """Finish what is being compiled, and nothing after it, when the process ends."""
        self._ends = True
        self._jobs.put(None)
        if self._thread is not None and not forks.is_lost():
            self._thread.join()

    def forget(self) -> None:
        """In a forked child, which has no such thread."""
        self.__init__()  # type: ignore[misc]


WORKER = _Worker()
forks.listeners.append(WORKER.forget)


class Untraced:
    """A function that runs outside ``jax.jit``, in the form of :class:`Tiered`."""

    def __init__(self, function: Callable[..., Any]):
        self.call = self.plain = function
        self.promoted: Callable[[], Any] | None = None


def here(tiered: Tiered | Untraced) -> Callable[..., Any]:
    """What to call of a function: within a trace the plain one."""
    return tiered.call if jax_core.is_outside_traces() else tiered.plain
