"""Errors that hooks raise in a backward pass reach the caller of ``backward``.

When a hook fails, PyTorch's C++ asks the guard of the device, which is Python, for the device's
type, with Python's error still set: the process would end. So the guard takes the error away and
the engine, whose own exception is empty now, raises it again. From the engine's threads it gets
there in a list that PyTorch's thread-local state carries along.

C++ asks the guard in functions, ``noexcept``, that end the process where anything is thrown. So no
line of Python may run there, not even outside of a backward pass: a signal that Python notices at
the entry of a function would be thrown as a ``KeyboardInterrupt``. The guard's answers are steps of
iterators that are written in C, and from the question to the answer signals are held.
"""

from __future__ import annotations

import functools
import itertools
import operator
import threading
from collections.abc import Iterator
from typing import Any

from torch_jax._private import pytorch
from torch_jax.core import backward, signals
from torch_jax.core.patching import AT_FIRST_USE, around, patch

_KEY = "torch_jax errors"
_NO_STREAM = "opt_ready_stream && opt_parent_stream"
_ONE_ACCELERATOR = (
    "a backward pass on another accelerator: PyTorch has one accelerator in a process, the device "
    "'jax' since torch_jax was imported (https://github.com/pytorch/pytorch/issues/161129). Train "
    "on the other one in a process that does not import torch_jax."
)

_found: dict[bytes, list] = {}  # by where errors are, the list of the backward pass of each

_passes: set[int] = set()  # backward passes under way
_changing = threading.Lock()


def _asked(steps: Iterator[None]) -> property:
    """Return a property for the method that C++ looks up: run ``steps``, then hold signals."""
    finding = zip(steps, signals.held(), itertools.repeat(_answer.__next__), strict=False)
    return property(functools.partial(next, map(operator.itemgetter(2), finding)))


_answer = map(
    operator.itemgetter(1),
    zip(signals.let_go(), itertools.repeat(pytorch.PRIVATE_USE1), strict=False),
)
_plain = _asked(itertools.repeat(None))
# the error goes first of all: to Python, a call that returns although one is set has failed
_careful = _asked(pytorch.takes_errors(_KEY, _found))


class Guard(pytorch.GuardBase):
    """There is one logical device, so switching devices has nothing to do.

    While an error is set, Python takes a name that a dict does not have for a failure, and forgets
    the error. So ``type_`` is in the dict that is searched first, and there is no other one.
    """

    __slots__ = ()
    type_ = _plain


def _errors_of(noted: list) -> list[BaseException]:
    """Return the errors of a backward pass, and forget them."""
    own = [at for at, whose in list(_found.items()) if whose is noted]
    for at in own:
        del _found[at]
    return list(map(pytorch.error_at, own))


@patch("torch.autograd.Variable._execution_engine", AT_FIRST_USE)
def _raise_noted(engine: Any) -> Any:
    """When a hook fails, C++ asks the device's guard, in Python, while the error is still set."""
    kind: Any = type(engine)

    class Engine(kind):
        def run_backward(self, *args: Any, **kwargs: Any) -> Any:
            outer = pytorch.get_carried(_KEY) if pytorch.is_carried(_KEY) else None
            noted: list[BaseException] = []
            try:
                pytorch.carry(_KEY, noted)
                with _changing:  # to be careful costs half a microsecond: only in backward passes
                    _passes.add(id(noted))
                    Guard.type_ = _careful
                with backward.around():
                    return super().run_backward(*args, **kwargs)
            except SystemError:  # the engine failed, and its error has been taken away
                if not (errors := _errors_of(noted)):
                    raise
                raise errors.pop(0) from None  # the frame keeps none: errors keep the frame
            except RuntimeError as error:
                if _NO_STREAM in str(error):
                    raise RuntimeError(_ONE_ACCELERATOR) from error
                raise
            finally:
                pytorch.carry(_KEY, outer)
                with _changing:
                    _passes.discard(id(noted))
                    Guard.type_ = _careful if _passes else _plain

    return Engine()


@around("signal.signal", AT_FIRST_USE)
def _through_switch(original: Any, signalnum: Any, handler: Any) -> Any:
    """A handler that raises (Ctrl-C) would end the process if C++ is asking the device's guard."""
    return signals.plain(original(signalnum, signals.through_switch(signalnum, handler)))


@around("signal.getsignal", AT_FIRST_USE)
def _as_it_was_given(original: Any, signalnum: Any) -> Any:
    """Handlers are wrapped, but asyncio compares ``getsignal`` with the handler that it gave."""
    return signals.plain(original(signalnum))
